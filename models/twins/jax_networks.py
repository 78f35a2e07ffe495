"""The twins' networks as functions of parameters, with `jax.numpy`, `jax.nn` and `jax.lax`.

Parameters are a list in the order of the Keras model's trainable weights, in Keras's shapes. Each function returns the
logits. Dropout draws its masks from a key that the step splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from keras_matrix.models.twins.interface import drop_rates

Network = Callable[[Sequence[Any], Any, Any], Any]


def dense_network(model: Any) -> Network:
    """Return dense layers with ReLU and dropout, and a dense layer of classes."""
    rates = drop_rates(model)

    def logits(params: Sequence[Any], x: Any, key: Any) -> Any:
        pairs = list(zip(params[::2], params[1::2], strict=True))
        keys = jax.random.split(key, len(rates))
        for (kernel, bias), rate, own in zip(pairs[:-1], rates, keys, strict=True):
            x = _dropout(jax.nn.relu(x @ kernel + bias), rate, own)
        kernel, bias = pairs[-1]
        return x @ kernel + bias

    return logits


def convolutional_network(model: Any) -> Network:
    """Return two pairs of convolutions, each pooled, then a dense layer, and one of classes."""
    rates = drop_rates(model)

    def logits(params: Sequence[Any], x: Any, key: Any) -> Any:
        pairs = list(zip(params[::2], params[1::2], strict=True))
        keys = jax.random.split(key, len(rates))
        for at, padding in enumerate(("SAME", "VALID", "SAME", "VALID")):
            kernel, bias = pairs[at]
            x = lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            if at % 2:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                x = _dropout(x, rates[at // 2], keys[at // 2])
        (kernel, bias), (last_kernel, last_bias) = pairs[4:]
        x = jax.nn.relu(x.reshape(len(x), -1) @ kernel + bias)
        return _dropout(x, rates[2], keys[2]) @ last_kernel + last_bias

    return logits


def recurrent_network(model: Any) -> Network:
    """Return an LSTM by `lax.scan`, the product of all inputs before it, and a dense layer on its last state."""

    def logits(params: Sequence[Any], x: Any, key: Any) -> Any:
        kernel, recurrent, bias, last_kernel, last_bias = params

        def cell(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], None]:
            hidden, memory = carry
            gates = inputs + hidden @ recurrent
            into, forget, new, out = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(into) * jnp.tanh(new)
            return (jax.nn.sigmoid(out) * jnp.tanh(memory), memory), None

        begin = jnp.zeros((len(x), recurrent.shape[0]), x.dtype)
        inputs = jnp.swapaxes(x @ kernel + bias, 0, 1)
        (hidden, _), _ = lax.scan(cell, (begin, begin), inputs)
        return hidden @ last_kernel + last_bias

    return logits


def decoder_network(model: Any) -> Network:
    """Return a causal transformer that normalises before its layers, with `jax.nn.dot_product_attention`."""

    def attended(take: Iterator[Any], x: Any) -> Any:
        projected = [jnp.einsum("btd,dhk->bthk", x, next(take)) + next(take) for _ in range(3)]
        found = jax.nn.dot_product_attention(*projected, is_causal=True)
        return jnp.einsum("bthk,hkd->btd", found, next(take)) + next(take)

    def logits(params: Sequence[Any], tokens: Any, key: Any) -> Any:
        take = iter(params)
        x = next(take)[tokens]
        x = x + next(take)[: x.shape[1]]
        for _ in range((len(params) - 5) // 16):
            x = x + attended(take, _normalised(take, x))
            hidden = jax.nn.gelu(_normalised(take, x) @ next(take) + next(take), approximate=False)
            x = x + hidden @ next(take) + next(take)
        return _normalised(take, x) @ next(take)

    return logits


NETWORKS: dict[str, Callable[[Any], Network]] = {
    "mnist_mlp": dense_network,
    "cifar10_cnn": convolutional_network,
    "lstm": recurrent_network,
    "lstm_text_generation": recurrent_network,
    "decoder_lm": decoder_network,
}


def _normalised(take: Iterator[Any], x: Any) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * next(take) + next(take)


def _dropout(x: Any, rate: float, key: Any) -> Any:
    if not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
