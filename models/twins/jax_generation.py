"""Greedy generation on JAX: one jitted program of the pass over the prompt and a loop over decoding steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_matrix.models.twins.generation import EPSILON, Affine, Continue, Weights, weights_of
from keras_matrix.models.twins.interface import Compiled

Caches = Sequence[tuple[Any, Any]]
"""The keys and values of each block, (batch, max_length, heads, head width)."""


def continuing(model: Any, prompt_length: int, compiled: Compiled) -> Continue:
    """Return native generation with a copy of the model's weights."""
    heads = model.backbone.num_heads
    copied = jax.tree.map(jnp.asarray, weights_of(model))

    def generate(weights: Weights, sequence: Any) -> Any:
        rows, length = sequence.shape
        empty = jnp.zeros((rows, length, heads, weights.positions.shape[1] // heads), weights.positions.dtype)
        caches: Caches = [(empty, empty)] * len(weights.blocks)
        token, caches = _next_token(weights, caches, sequence[:, :prompt_length], (0, prompt_length))

        def step(position: Any, state: Any) -> Any:
            sequence, token, caches = state
            sequence = lax.dynamic_update_slice(sequence, token[:, None], (0, position))
            return sequence, *_next_token(weights, caches, token[:, None], (position, length))

        sequence, token, _ = lax.fori_loop(prompt_length, length - 1, step, (sequence, token, caches))
        return sequence.at[:, -1].set(token)

    program = jax.jit(generate) if compiled.jit else generate
    return lambda sequence: np.asarray(program(copied, sequence))


def _next_token(weights: Weights, caches: Caches, tokens: Any, span: tuple[Any, int]) -> tuple[Any, Caches]:
    """Return the tokens that follow (batch, length) ones, and the caches filled with these.

    `span` is the position of the first of them, and up to where they attend: the prompt, or the full cache.
    """
    begin, end = span
    at = begin + jnp.arange(tokens.shape[1])
    seen = jnp.arange(end) <= at[:, None]
    x, filled = weights.tokens[tokens] + weights.positions[at], []
    for block, cache in zip(weights.blocks, caches, strict=True):
        projected = _product(_normalised(x, block.attention_norm), block.projection)
        query, key, value = jnp.moveaxis(projected.reshape(*x.shape[:2], 3, *cache[0].shape[2:]), 2, 0)
        keys = lax.dynamic_update_slice(cache[0], key, (0, begin, 0, 0))
        values = lax.dynamic_update_slice(cache[1], value, (0, begin, 0, 0))
        filled.append((keys, values))
        found = jax.nn.dot_product_attention(query, keys[:, :end], values[:, :end], mask=seen[None, None])
        x = x + _product(found.reshape(x.shape), block.joined)
        x = x + _product(jax.nn.gelu(_product(_normalised(x, block.feed_norm), block.hidden)), block.out)
    logits = _normalised(x[:, -1], weights.norm) @ weights.tokens.T
    return jnp.argmax(logits, axis=-1).astype(tokens.dtype), filled


def _product(x: Any, affine: Affine) -> Any:
    return x @ affine.weight + affine.bias


def _normalised(x: Any, affine: Affine) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + EPSILON) * affine.weight + affine.bias
