"""Greedy generation on PyTorch: modules without gradients, and a loop in Python over decoding steps.

Nothing is compiled, as in KerasHub. A step attends to the filled part of the cache only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from keras_matrix.models.twins import generation
from keras_matrix.models.twins.generation import EPSILON, Affine, Continue, Weights, weights_of
from keras_matrix.models.twins.interface import Compiled


def continuing(model: Any, prompt_length: int, compiled: Compiled) -> Continue:
    """Return native generation with a copy of the model's weights."""
    device = model.backbone.weights[0].value.device
    decoder = CachedDecoder(weights_of(model), model.backbone.num_heads).to(device).eval()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def generate(prompts: Any) -> Any:
        sequence, length = prompts.clone(), prompts.shape[1]
        caches = decoder.empty_caches(len(prompts), length)
        sequence[:, prompt_length] = decoder(sequence[:, :prompt_length], caches, 0)
        for position in range(prompt_length, length - 1):
            sequence[:, position + 1] = decoder(sequence[:, position : position + 1], caches, position)
        return sequence.cpu().numpy()

    made: Continue = generate
    return made


class CachedBlock(nn.Module):  # type: ignore[misc]
    """A block that normalises before its layers, and attends to a cache."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.projection, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Any, cache: Any, begin: int) -> Any:
        """(batch, length, width) to the same; fills (2, batch, heads, max_length, head width) from `begin`."""
        end = begin + x.shape[1]
        projected = self.projection(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        cache[0, :, :, begin:end], cache[1, :, :, begin:end] = key, value
        keys, values = cache[:, :, :, :end]
        # After the prompt a step has one query, which sees all that is filled.
        found = functional.scaled_dot_product_attention(query, keys, values, is_causal=begin == 0)
        x = x + self.joined(found.transpose(1, 2).flatten(2))
        return x + self.out(functional.gelu(self.hidden(self.feed_norm(x)), approximate="tanh"))


class CachedDecoder(nn.Module):  # type: ignore[misc]
    """GPT-2, predicting the next token."""

    def __init__(self, weights: Weights, heads: int) -> None:
        super().__init__()
        (tokens, width), (length, _) = weights.tokens.shape, weights.positions.shape
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CachedBlock(width, heads, one.hidden.bias.size) for one in weights.blocks)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self._fill(weights)

    def forward(self, tokens: Any, caches: Any, begin: int) -> Any:
        """Return the token after each row of (batch, length) ones, which are at `begin`."""
        x = self.tokens(tokens) + self.positions.weight[begin : begin + tokens.shape[1]]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, begin)
        return functional.linear(self.norm(x[:, -1]), self.tokens.weight).argmax(-1)

    def empty_caches(self, rows: int, length: int) -> Any:
        """Return the caches of all blocks."""
        table = self.positions.weight
        return table.new_empty(len(self.blocks), 2, rows, self.heads, length, table.shape[1] // self.heads)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, weights: Weights) -> None:
        self.tokens.weight.copy_(torch.from_numpy(weights.tokens))
        self.positions.weight.copy_(torch.from_numpy(weights.positions))
        _copy(weights.norm, self.norm)
        for block, own in zip(weights.blocks, self.blocks, strict=True):
            for name in generation.BlockWeights._fields:
                _copy(getattr(block, name), getattr(own, name))


def _copy(affine: Affine, module: Any) -> None:
    """Copy a matrix (in, out), whose transpose PyTorch has, or a normalisation, and its bias."""
    module.weight.copy_(torch.from_numpy(affine.weight.T))
    module.bias.copy_(torch.from_numpy(affine.bias))
