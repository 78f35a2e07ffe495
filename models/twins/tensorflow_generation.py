"""Greedy generation on TensorFlow: one `tf.function` of the pass over the prompt and a loop over decoding steps.

Sequences and caches have their positions first, so that a step writes one row of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_matrix.models.twins.generation import EPSILON, Affine, Continue, Weights, weights_of
from keras_matrix.models.twins.interface import Compiled

Caches = Sequence[tuple[Any, Any]]
"""The keys and values of each block, (max_length, batch, heads, head width)."""


def continuing(model: Any, prompt_length: int, compiled: Compiled) -> Continue:
    """Return native generation with a copy of the model's weights."""
    heads = model.backbone.num_heads
    weights: Weights = tf.nest.map_structure(tf.Variable, weights_of(model))

    def generate(sequence: Any) -> Any:
        rows, length = sequence.shape
        sequence = tf.transpose(sequence)
        empty = tf.zeros((length, rows, heads, weights.positions.shape[1] // heads))
        caches: Caches = [(empty, empty)] * len(weights.blocks)
        token, caches = _next_token(weights, caches, sequence[:prompt_length], (0, prompt_length))

        def step(position: Any, sequence: Any, token: Any, caches: Any) -> Any:
            sequence = _written(sequence, token[None], position)
            return position + 1, sequence, *_next_token(weights, caches, token[None], (position, length))

        _, sequence, token, _ = tf.while_loop(
            lambda position, *_: position < length - 1,
            step,
            (tf.constant(prompt_length), sequence, token, caches),
            maximum_iterations=length - 1 - prompt_length,
        )
        return tf.transpose(_written(sequence, token[None], length - 1))

    program = generate if compiled.eager else tf.function(generate, jit_compile=compiled.jit)
    return lambda sequence: program(sequence).numpy()


def _next_token(weights: Weights, caches: Caches, tokens: Any, span: tuple[Any, int]) -> tuple[Any, Caches]:
    """Return the tokens that follow (length, batch) ones, and the caches filled with these.

    `span` is the position of the first of them, and up to where they attend: the prompt, or the full cache.
    """
    begin, end = span
    at = begin + tf.range(tokens.shape[0])
    seen = tf.range(end) <= at[:, None]
    x, filled = tf.gather(weights.tokens, tokens) + tf.gather(weights.positions, at)[:, None], []
    for block, cache in zip(weights.blocks, caches, strict=True):
        projected = _product(_normalised(x, block.attention_norm), block.projection)
        query, key, value = tf.unstack(tf.reshape(projected, (*x.shape[:2], 3, *cache[0].shape[2:])), axis=2)
        keys, values = _written(cache[0], key, begin), _written(cache[1], value, begin)
        filled.append((keys, values))
        scores = tf.einsum("tbhk,sbhk->bhts", query, keys[:end]) / query.shape[-1] ** 0.5
        shares = tf.nn.softmax(tf.where(seen, scores, scores.dtype.min))
        found = tf.einsum("bhts,sbhk->tbhk", shares, values[:end])
        x = x + _product(tf.reshape(found, x.shape), block.joined)
        hidden = tf.nn.gelu(_product(_normalised(x, block.feed_norm), block.hidden), approximate=True)
        x = x + _product(hidden, block.out)
    logits = tf.matmul(_normalised(x[-1], weights.norm), weights.tokens, transpose_b=True)
    return tf.argmax(logits, axis=-1, output_type=tokens.dtype), filled


def _written(target: Any, rows: Any, begin: Any) -> Any:
    """Return the target with these rows from the position `begin`."""
    return tf.tensor_scatter_nd_update(target, (begin + tf.range(rows.shape[0]))[:, None], rows)


def _product(x: Any, affine: Affine) -> Any:
    return tf.tensordot(x, affine.weight, 1) + affine.bias


def _normalised(x: Any, affine: Affine) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, affine.bias, affine.weight, EPSILON)
