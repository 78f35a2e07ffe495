"""The rungs on JAX: one jitted function with a donated state for each, and optimizers as functions of lists of arrays.

optax is not needed: its RMSprop and AdamW compile to programs of the same size (docs/keras-cost.md).

The networks are functions of parameters, with `jax.numpy`, `jax.nn` and `jax.lax`. Parameters are a list in the order
of the Keras model's trainable weights, in Keras's shapes. Each function returns the logits. Dropout draws its masks
from a key that the step splits.

Greedy generation: one jitted program of the pass over the prompt and a loop over decoding steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from keras_matrix.models.twins.generation import EPSILON, Affine, Continue, Weights, weights_of
from keras_matrix.models.twins.interface import (
    AdamW,
    AtInference,
    Batch,
    Compiled,
    KerasLoop,
    Native,
    RMSprop,
    Rung,
    drop_rates,
    ends_in_softmax,
    optimizer_of,
)

Loss = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""From parameters, further state, inputs and targets to the loss and the new further state."""
Network = Callable[[Sequence[Any], Any, Any], Any]
Update = Callable[[Any, Any, Any], tuple[Any, Any]]
"""From gradients, the optimizer's state and parameters to new parameters and the new state."""
# The parts of the state that Keras's training function takes and returns, in its order.
STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
Caches = Sequence[tuple[Any, Any]]
"""The keys and values of each block, (batch, max_length, heads, head width)."""


def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Callable[[], Rung]]:
    """Return what makes each rung for a Keras model of the workload."""

    def step(loss: tuple[Loss, Any], update: tuple[Update, Any]) -> Rung:
        return _Steps(model, compiled, loss, update)

    return {
        "loop": lambda: _KerasLoop(model),
        "no_metrics": lambda: step(_keras_loss(model), _keras_update(model)),
        "layers": lambda: step(_keras_loss(model), _own_update(model)),
        "native": lambda: step(_own_loss(model, workload, seed), _own_update(model)),
    }


class _KerasLoop(KerasLoop):
    _state: Any = None

    def step(self, batch: Batch) -> None:
        if self._state is None:
            self._state = self.model._get_jax_state(**dict.fromkeys(STATE, True), purge_model_variables=True)
            self.model._jax_state_synced = False
        _, self._state = self.model.train_function(self._state, iter((batch,)))

    def end_epoch(self) -> dict[str, float]:
        self.model._jax_state = dict(zip(STATE, self._state, strict=True))
        self.model.jax_state_sync()
        self.model._jax_state = self._state = None
        return super().end_epoch()


class _Steps:
    """A training step of this module: its loss, and its update of the parameters."""

    counts = False

    def __init__(self, model: Any, compiled: Compiled, loss: tuple[Loss, Any], update: tuple[Update, Any]) -> None:
        self._model, self._steps = model, 0
        compute, extra = loss
        apply, slots = update
        # Copies: the step takes the memory of its state.
        params = [jnp.array(variable.value) for variable in model.trainable_variables]
        self._state = {"params": params, "extra": extra, "slots": slots, "loss": jnp.zeros(())}

        def train_step(state: Any, batch: Batch) -> Any:
            gradient = jax.value_and_grad(compute, has_aux=True)
            (loss, extra), gradients = gradient(state["params"], state["extra"], *batch)
            params, slots = apply(gradients, state["slots"], state["params"])
            return {"params": params, "extra": extra, "slots": slots, "loss": state["loss"] + loss}

        self._step = jax.jit(train_step, donate_argnums=0) if compiled.jit else train_step

    def begin_epoch(self) -> None:
        self._state["loss"], self._steps = jnp.zeros(()), 0

    def step(self, batch: Batch) -> None:
        self._state = self._step(self._state, batch)
        self._steps += 1

    def end_epoch(self) -> dict[str, float]:
        jax.block_until_ready(self._state)
        return {"loss": float(self._state["loss"]) / self._steps}

    def updates(self) -> int:
        slots: Any = self._state["slots"]
        return int(slots[0] if isinstance(slots, list) else slots["step"])

    def write_back(self) -> None:
        for variable, value in zip(self._model.trainable_variables, self._state["params"], strict=True):
            variable.assign(jnp.array(value))


def _keras_loss(model: Any) -> tuple[Loss, Any]:
    """Return the loss by Keras's layers and loss function; further state are the variables that are not trained."""

    def loss(params: Any, extra: Any, x: Any, y: Any) -> tuple[Any, Any]:
        outputs, extra = model.stateless_call(params, extra, x, training=True)
        return model.compute_loss(x, y, outputs, training=True), extra

    return loss, [jnp.array(variable.value) for variable in model.non_trainable_variables]


def _keras_update(model: Any) -> tuple[Update, Any]:
    """Return the update by Keras's optimizer."""

    def update(gradients: Any, slots: Any, params: Any) -> tuple[Any, Any]:
        params, slots = model.optimizer.stateless_apply(slots, gradients, params)
        return params, slots

    return update, [jnp.array(variable.value) for variable in model.optimizer.variables]


def _own_loss(model: Any, workload: str, seed: int) -> tuple[Loss, Any]:
    """Return the twin's loss; further state is the key of its dropout masks, if it has dropout."""
    network = NETWORKS[workload](model)
    drops = any(drop_rates(model))

    def loss(params: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
        key, dropout_key = jax.random.split(key) if drops else (key, key)
        return _loss_of(network(params, x, dropout_key), y), key

    return loss, jax.random.key(seed)


def _loss_of(logits: Any, y: Any) -> Any:
    likely = jax.nn.log_softmax(logits)
    if y.ndim < likely.ndim:
        return -jnp.mean(jnp.take_along_axis(likely, y[..., None], axis=-1))
    return -jnp.mean(jnp.sum(y * likely, axis=-1))


def called(model: Any, workload: str, compiled: Compiled, training: bool) -> Native:
    """Return the twin of a Keras model of the workload, called; its gradients with dropout if `training`."""
    plain = NETWORKS[workload](AtInference(model))
    network = NETWORKS[workload](model) if training else plain
    params = [jnp.array(variable.value) for variable in model.trainable_variables]
    key, has_softmax = jax.random.key(0), ends_in_softmax(model)

    def outputs(params: Any, x: Any) -> Any:
        logits = plain(params, x, key)
        return jax.nn.softmax(logits) if has_softmax else logits

    def loss(params: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
        logits = network(params, x, key)
        return _loss_of(logits, y), logits

    step = jax.value_and_grad(loss, has_aux=True)
    answer, step = (jax.jit(outputs), jax.jit(step)) if compiled.jit else (outputs, step)

    def gradients(x: Any, y: Any) -> tuple[Any, Sequence[Any], Any]:
        (value, logits), found = step(params, key, x, y)
        return value, found, logits

    return Native(lambda x: answer(params, x), gradients, lambda values: list(map(np.asarray, values)))


def _own_update(model: Any) -> tuple[Update, Any]:
    """Return the update by plain JAX, with the options of the model's optimizer."""
    options = optimizer_of(model)

    def zeros() -> list[Any]:
        return [jnp.zeros_like(variable.value) for variable in model.trainable_variables]

    step = jnp.zeros((), jnp.int32)
    if isinstance(options, RMSprop):
        return _rmsprop(options), {"step": step, "squares": zeros()}
    return _adamw(options), {"step": step, "means": zeros(), "squares": zeros()}


def _rmsprop(options: RMSprop) -> Update:
    def update(gradients: Sequence[Any], slots: Any, params: Sequence[Any]) -> tuple[Any, Any]:
        rate = options.rate / (1 + options.decay * slots["step"])
        squares = [options.rho * v + (1 - options.rho) * g**2 for v, g in zip(slots["squares"], gradients, strict=True)]
        moved_params = [
            p - rate * g / jnp.sqrt(v + options.epsilon) for p, g, v in zip(params, gradients, squares, strict=True)
        ]
        return moved_params, {"step": slots["step"] + 1, "squares": squares}

    return update


def _adamw(options: AdamW) -> Update:
    beta_1, two = options.beta_1, options.beta_2

    def update(gradients: Sequence[Any], slots: Any, params: Sequence[Any]) -> tuple[Any, Any]:
        step = slots["step"] + 1
        means = [beta_1 * m + (1 - beta_1) * g for m, g in zip(slots["means"], gradients, strict=True)]
        squares = [two * v + (1 - two) * g**2 for v, g in zip(slots["squares"], gradients, strict=True)]
        corrected, scale = 1 - beta_1**step, 1 - two**step
        moved_params = [
            p - options.rate * (m / corrected / (jnp.sqrt(v / scale) + options.epsilon) + options.weight_decay * p)
            for p, m, v in zip(params, means, squares, strict=True)
        ]
        return moved_params, {"step": step, "means": means, "squares": squares}

    return update


def dense_network(model: Any) -> Network:
    """Return dense layers with ReLU and dropout, and a dense layer of classes."""
    rates = drop_rates(model)

    def logits(params: Sequence[Any], x: Any, key: Any) -> Any:
        pairs = list(zip(params[::2], params[1::2], strict=True))
        keys = jax.random.split(key, len(rates))
        for (kernel, bias), rate, dropout_key in zip(pairs[:-1], rates, keys, strict=True):
            x = _dropout(jax.nn.relu(x @ kernel + bias), rate, dropout_key)
        kernel, bias = pairs[-1]
        return x @ kernel + bias

    return logits


def convolutional_network(model: Any) -> Network:
    """Return two pairs of convolutions, each pooled, then a dense layer, and one of classes."""
    rates = drop_rates(model)

    def logits(params: Sequence[Any], x: Any, key: Any) -> Any:
        pairs = list(zip(params[::2], params[1::2], strict=True))
        keys = jax.random.split(key, len(rates))
        for index, padding in enumerate(("SAME", "VALID", "SAME", "VALID")):
            kernel, bias = pairs[index]
            x = lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            if index % 2:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                x = _dropout(x, rates[index // 2], keys[index // 2])
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
        attention = jax.nn.dot_product_attention(*projected, is_causal=True)
        return jnp.einsum("bthk,hkd->btd", attention, next(take)) + next(take)

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
    positions = begin + jnp.arange(tokens.shape[1])
    visible = jnp.arange(end) <= positions[:, None]
    x, filled = weights.tokens[tokens] + weights.positions[positions], []
    for block, cache in zip(weights.blocks, caches, strict=True):
        projected = _product(_layer_normalised(x, block.attention_norm), block.projection)
        query, key, value = jnp.moveaxis(projected.reshape(*x.shape[:2], 3, *cache[0].shape[2:]), 2, 0)
        keys = lax.dynamic_update_slice(cache[0], key, (0, begin, 0, 0))
        values = lax.dynamic_update_slice(cache[1], value, (0, begin, 0, 0))
        filled.append((keys, values))
        attention = jax.nn.dot_product_attention(query, keys[:, :end], values[:, :end], mask=visible[None, None])
        x = x + _product(attention.reshape(x.shape), block.joined)
        x = x + _product(jax.nn.gelu(_product(_layer_normalised(x, block.feed_norm), block.hidden)), block.out)
    logits = _layer_normalised(x[:, -1], weights.norm) @ weights.tokens.T
    return jnp.argmax(logits, axis=-1).astype(tokens.dtype), filled


def _product(x: Any, affine: Affine) -> Any:
    return x @ affine.weight + affine.bias


def _layer_normalised(x: Any, affine: Affine) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + EPSILON) * affine.weight + affine.bias
