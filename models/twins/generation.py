"""What native generation shares on all backends: the weights of KerasHub's GPT-2, and what a backend's module offers.

The module of each backend has a function `continuing(model, prompt_length, compiled)`. It copies the weights of
a KerasHub `GPT2CausalLM` and returns a `Continue`: greedy generation with a cache of keys and values, one pass over the
prompt, then a step for each further token.

Limit: GPT-2 in float32, neither quantised nor with LoRA; all prompts of a batch have the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from keras import ops
from numpy.typing import NDArray

Continue = Callable[[Any], NDArray[np.int32]]
"""From prompts on the device, padded to (batch, max_length), to the continued sequences on the host."""

EPSILON = 1e-5  # of the normalisations


class Affine(NamedTuple):
    """A matrix (in, out) and its bias; of a normalisation its scale and shift."""

    weight: Any
    bias: Any


class BlockWeights(NamedTuple):
    """A decoder block in the order of its use; `projection` makes queries, keys and values by one product."""

    attention_norm: Affine
    projection: Affine
    joined: Affine
    feed_norm: Affine
    hidden: Affine
    out: Affine


class Weights(NamedTuple):
    """The weights of GPT-2; the table of tokens is the output's matrix, too."""

    tokens: Any
    positions: Any
    blocks: tuple[BlockWeights, ...]
    norm: Affine


def weights_of(model: Any) -> Weights:
    """Return the weights of a KerasHub `GPT2CausalLM` as arrays on the host."""
    backbone = model.backbone
    take = (np.array(ops.convert_to_numpy(weight)) for weight in backbone.weights)
    tokens, positions = next(take), next(take)
    blocks = tuple(_block(take, backbone.hidden_dim) for _ in range(backbone.num_layers))
    return Weights(tokens, positions, blocks, Affine(next(take), next(take)))


def _block(take: Iterator[Any], width: int) -> BlockWeights:
    """Take the weights of a block in KerasHub's order, those of all heads as one matrix."""

    def matrix(rows: int) -> Affine:
        return Affine(next(take).reshape(rows, -1), next(take).reshape(-1))

    separate_projections = [matrix(width) for _ in range(3)]
    projection = Affine(*(np.concatenate(pieces, axis=-1) for pieces in zip(*separate_projections, strict=True)))
    joined, attention_norm, hidden = matrix(width), Affine(next(take), next(take)), matrix(width)
    out = matrix(hidden.bias.size)
    return BlockWeights(attention_norm, projection, joined, Affine(next(take), next(take)), hidden, out)
