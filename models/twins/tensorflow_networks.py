"""The twins' networks as functions of variables, with `tf.nn` and matrix products.

Variables are a list in the order of the Keras model's trainable weights, in Keras's shapes. Each function returns the
logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_matrix.models.twins.interface import drop_rates

Network = Callable[[Sequence[Any], Any], Any]


def dense_network(model: Any) -> Network:
    """Return dense layers with ReLU and dropout, and a dense layer of classes."""
    rates = drop_rates(model)

    def logits(weights: Sequence[Any], x: Any) -> Any:
        *hidden, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
        for (own_kernel, own_bias), rate in zip(hidden, rates, strict=True):
            x = _dropout(tf.nn.relu(x @ own_kernel + own_bias), rate)
        return x @ kernel + bias

    return logits


def convolutional_network(model: Any) -> Network:
    """Return two pairs of convolutions, each pooled, then a dense layer, and one of classes."""
    rates = drop_rates(model)

    def logits(weights: Sequence[Any], x: Any) -> Any:
        *convolutions, (kernel, bias), (last_kernel, last_bias) = zip(weights[::2], weights[1::2], strict=True)
        for at, (own_kernel, own_bias) in enumerate(convolutions):
            x = tf.nn.relu(tf.nn.conv2d(x, own_kernel, 1, "VALID" if at % 2 else "SAME") + own_bias)
            if at % 2:
                x = _dropout(tf.nn.max_pool2d(x, 2, 2, "VALID"), rates[at // 2])
        x = tf.reshape(x, (x.shape[0], -1))
        return _dropout(tf.nn.relu(x @ kernel + bias), rates[2]) @ last_kernel + last_bias

    return logits


def recurrent_network(model: Any) -> Network:
    """Return an LSTM by `tf.while_loop`, the product of all inputs before it, and a dense layer on its last state."""

    def logits(weights: Sequence[Any], x: Any) -> Any:
        kernel, recurrent, bias, last_kernel, last_bias = weights
        inputs = tf.transpose(tf.tensordot(x, kernel, 1) + bias, (1, 0, 2))
        length = inputs.shape[0]
        # The gradient of inputs[step] would be an array as large as inputs for each step.
        steps = tf.TensorArray(inputs.dtype, length).unstack(inputs)

        def cell(step: Any, hidden: Any, memory: Any) -> tuple[Any, Any, Any]:
            into, forget, new, out = tf.split(steps.read(step) + hidden @ recurrent, 4, axis=-1)
            memory = tf.sigmoid(forget) * memory + tf.sigmoid(into) * tf.tanh(new)
            return step + 1, tf.sigmoid(out) * tf.tanh(memory), memory

        begin = tf.zeros((x.shape[0], recurrent.shape[0]), x.dtype)
        loop = (tf.constant(0), begin, begin)
        _, hidden, _ = tf.while_loop(lambda step, *_: step < length, cell, loop, maximum_iterations=length)
        return hidden @ last_kernel + last_bias

    return logits


def decoder_network(model: Any) -> Network:
    """Return a causal transformer that normalises before its layers."""

    def attended(take: Iterator[Any], x: Any) -> Any:
        query, key, value = (tf.einsum("btd,dhk->bthk", x, next(take)) + next(take) for _ in range(3))
        scores = tf.einsum("bthk,bshk->bhts", query, key) / query.shape[-1] ** 0.5
        causal = tf.linalg.band_part(tf.ones((x.shape[1], x.shape[1]), tf.bool), -1, 0)
        shares = tf.nn.softmax(tf.where(causal, scores, scores.dtype.min))
        found = tf.einsum("bhts,bshk->bthk", shares, value)
        return tf.einsum("bthk,hkd->btd", found, next(take)) + next(take)

    def logits(weights: Sequence[Any], tokens: Any) -> Any:
        take = iter(weights)
        x = tf.gather(next(take), tokens)
        x = x + next(take)[: tokens.shape[1]]
        for _ in range((len(weights) - 5) // 16):
            x = x + attended(take, _normalised(take, x))
            hidden = tf.nn.gelu(_product(_normalised(take, x), next(take)) + next(take))
            x = x + _product(hidden, next(take)) + next(take)
        return _product(_normalised(take, x), next(take))

    return logits


NETWORKS: dict[str, Callable[[Any], Network]] = {
    "mnist_mlp": dense_network,
    "cifar10_cnn": convolutional_network,
    "lstm": recurrent_network,
    "lstm_text_generation": recurrent_network,
    "decoder_lm": decoder_network,
}


def _product(x: Any, kernel: Any) -> Any:
    return tf.tensordot(x, kernel, 1)


def _normalised(take: Iterator[Any], x: Any) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    gamma, beta = next(take), next(take)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def _dropout(x: Any, rate: float) -> Any:
    return tf.nn.dropout(x, rate) if rate else x
