"""The rungs on TensorFlow: a `tf.function` of one step, compiled by XLA if Keras's is, and optimizers of variables.

The networks are functions of variables, with `tf.nn` and matrix products. Variables are a list in the order of the
Keras model's trainable weights, in Keras's shapes. Each function returns the logits.

Greedy generation: one `tf.function` of the pass over the prompt and a loop over decoding steps. Sequences and caches
have their positions first, so that a step writes one row of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

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

Update = Callable[[Sequence[Any]], None]
"""Applies gradients to the variables."""
Network = Callable[[Sequence[Any], Any], Any]
Caches = Sequence[tuple[Any, Any]]
"""The keys and values of each block, (max_length, batch, heads, head width)."""


def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Callable[[], Rung]]:
    """Return what makes each rung for a Keras model of the workload."""
    weights = [variable.value for variable in model.trainable_variables]

    def own_variables() -> list[Any]:
        return [tf.Variable(weight) for weight in weights]

    def native() -> Rung:
        variables = own_variables()
        return _Steps(model, compiled, _own_loss(workload, model, variables), _OwnOptimizer(model, variables))

    return {
        "loop": lambda: _KerasLoop(model),
        "no_metrics": lambda: _Steps(model, compiled, _keras_loss(model), _KerasOptimizer(model)),
        "layers": lambda: _Steps(model, compiled, _keras_loss(model), _OwnOptimizer(model, weights)),
        "native": native,
    }


class _KerasLoop(KerasLoop):
    def step(self, batch: Batch) -> None:
        self.model.train_function(iter((batch,)))


class _KerasOptimizer:
    """The model's own optimizer."""

    def __init__(self, model: Any) -> None:
        self._optimizer, self._weights = model.optimizer, model.trainable_variables
        self.variables = [weight.value for weight in self._weights]
        self.count = model.optimizer.iterations.value

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the variables."""
        self._optimizer.apply(gradients, self._weights)


class _OwnOptimizer:
    """An optimizer of plain operations, with the options of the model's."""

    def __init__(self, model: Any, variables: Sequence[Any]) -> None:
        options = optimizer_of(model)
        self.variables = variables
        self.count = tf.Variable(0, dtype=tf.int64)
        if isinstance(options, RMSprop):
            self._update = _rmsprop(options, variables, self.count)
        else:
            self._update = _adamw(options, variables, self.count)

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update the variables; gradients of rows of a table become those of the table."""
        self.count.assign_add(1)
        self._update([tf.convert_to_tensor(gradient) for gradient in gradients])


class _Steps:
    """A training step of this module: its loss, and its optimizer."""

    counts = False

    def __init__(self, model: Any, compiled: Compiled, loss: Callable[[Any, Any], Any], optimizer: Any) -> None:
        self._model, self._optimizer, self._steps = model, optimizer, 0
        self._loss = total = tf.Variable(0.0)

        def train_step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                batch_loss = loss(x, y)
            optimizer.apply(tape.gradient(batch_loss, optimizer.variables))
            total.assign_add(batch_loss)

        self._train = train_step if compiled.eager else tf.function(train_step, jit_compile=compiled.jit)

    def begin_epoch(self) -> None:
        self._loss.assign(0.0)
        self._steps = 0

    def step(self, batch: Batch) -> None:
        self._train(*batch)
        self._steps += 1

    def end_epoch(self) -> dict[str, float]:
        return {"loss": float(self._loss) / self._steps}

    def updates(self) -> int:
        return int(self._optimizer.count)

    def write_back(self) -> None:
        for weight, variable in zip(self._model.trainable_variables, self._optimizer.variables, strict=True):
            if weight.value is not variable:
                weight.assign(variable)


def _keras_loss(model: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: model.compute_loss(x, y, model(x, training=True), training=True)


def _own_loss(workload: str, model: Any, variables: Sequence[Any]) -> Callable[[Any, Any], Any]:
    network = NETWORKS[workload](model)

    def loss(x: Any, y: Any) -> Any:
        return _loss_of(network(variables, x), y)

    return loss


def _loss_of(logits: Any, y: Any) -> Any:
    if y.shape.rank < logits.shape.rank:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, logits))


def called(model: Any, workload: str, compiled: Compiled, training: bool) -> Native:
    """Return the twin of a Keras model of the workload, called; its gradients with dropout if `training`."""
    plain = NETWORKS[workload](AtInference(model))
    network = NETWORKS[workload](model) if training else plain
    variables = [tf.Variable(variable.value) for variable in model.trainable_variables]
    has_softmax = ends_in_softmax(model)

    def outputs(x: Any) -> Any:
        logits = plain(variables, x)
        return tf.nn.softmax(logits) if has_softmax else logits

    def step(x: Any, y: Any) -> tuple[Any, Sequence[Any], Any]:
        with tf.GradientTape() as tape:
            logits = network(variables, x)
            loss = _loss_of(logits, y)
        return loss, tape.gradient(loss, variables), logits  # of rows of a table as Keras's: rows alone

    def program(function: Callable[..., Any]) -> Callable[..., Any]:
        compiles: Callable[..., Any] = tf.function(function, jit_compile=compiled.jit)
        return function if compiled.eager else compiles

    def in_keras(values: Sequence[Any]) -> list[Any]:
        return [tf.convert_to_tensor(value).numpy() for value in values]

    return Native(program(outputs), program(step), in_keras)


def _zeros(variables: Sequence[Any]) -> list[Any]:
    return [tf.Variable(tf.zeros_like(variable)) for variable in variables]


def _rmsprop(options: RMSprop, variables: Sequence[Any], count: Any) -> Update:
    squares = _zeros(variables)

    def update(gradients: Sequence[Any]) -> None:
        rate = options.rate / (1 + options.decay * tf.cast(count - 1, tf.float32))
        for variable, g, square in zip(variables, gradients, squares, strict=True):
            square.assign(options.rho * square + (1 - options.rho) * g**2)
            variable.assign_sub(rate * g / tf.sqrt(square + options.epsilon))

    return update


def _adamw(options: AdamW, variables: Sequence[Any], count: Any) -> Update:
    beta_1, two = options.beta_1, options.beta_2
    means, squares = _zeros(variables), _zeros(variables)

    def update(gradients: Sequence[Any]) -> None:
        step = tf.cast(count, tf.float32)
        rate = options.rate * tf.sqrt(1 - two**step) / (1 - beta_1**step)  # epsilon as in TensorFlow's own Adam
        for variable, g, mean, square in zip(variables, gradients, means, squares, strict=True):
            mean.assign(beta_1 * mean + (1 - beta_1) * g)
            square.assign(two * square + (1 - two) * g**2)
            variable.assign_sub(options.rate * options.weight_decay * variable)
            variable.assign_sub(rate * mean / (tf.sqrt(square) + options.epsilon))

    return update


def dense_network(model: Any) -> Network:
    """Return dense layers with ReLU and dropout, and a dense layer of classes."""
    rates = drop_rates(model)

    def logits(weights: Sequence[Any], x: Any) -> Any:
        *hidden_weights, (kernel, bias) = zip(weights[::2], weights[1::2], strict=True)
        for (own_kernel, own_bias), rate in zip(hidden_weights, rates, strict=True):
            x = _dropout(tf.nn.relu(x @ own_kernel + own_bias), rate)
        return x @ kernel + bias

    return logits


def convolutional_network(model: Any) -> Network:
    """Return two pairs of convolutions, each pooled, then a dense layer, and one of classes."""
    rates = drop_rates(model)

    def logits(weights: Sequence[Any], x: Any) -> Any:
        *convolutions, (kernel, bias), (last_kernel, last_bias) = zip(weights[::2], weights[1::2], strict=True)
        for index, (own_kernel, own_bias) in enumerate(convolutions):
            x = tf.nn.relu(tf.nn.conv2d(x, own_kernel, 1, "VALID" if index % 2 else "SAME") + own_bias)
            if index % 2:
                x = _dropout(tf.nn.max_pool2d(x, 2, 2, "VALID"), rates[index // 2])
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
        attention = tf.einsum("bhts,bshk->bthk", shares, value)
        return tf.einsum("bthk,hkd->btd", attention, next(take)) + next(take)

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
    positions = begin + tf.range(tokens.shape[0])
    visible = tf.range(end) <= positions[:, None]
    x, filled = tf.gather(weights.tokens, tokens) + tf.gather(weights.positions, positions)[:, None], []
    for block, cache in zip(weights.blocks, caches, strict=True):
        projected = _affine(_layer_normalised(x, block.attention_norm), block.projection)
        query, key, value = tf.unstack(tf.reshape(projected, (*x.shape[:2], 3, *cache[0].shape[2:])), axis=2)
        keys, values = _written(cache[0], key, begin), _written(cache[1], value, begin)
        filled.append((keys, values))
        scores = tf.einsum("tbhk,sbhk->bhts", query, keys[:end]) / query.shape[-1] ** 0.5
        shares = tf.nn.softmax(tf.where(visible, scores, scores.dtype.min))
        attention = tf.einsum("bhts,sbhk->tbhk", shares, values[:end])
        x = x + _affine(tf.reshape(attention, x.shape), block.joined)
        hidden = tf.nn.gelu(_affine(_layer_normalised(x, block.feed_norm), block.hidden), approximate=True)
        x = x + _affine(hidden, block.out)
    logits = tf.matmul(_layer_normalised(x[-1], weights.norm), weights.tokens, transpose_b=True)
    return tf.argmax(logits, axis=-1, output_type=tokens.dtype), filled


def _written(target: Any, rows: Any, begin: Any) -> Any:
    """Return the target with these rows from the position `begin`."""
    return tf.tensor_scatter_nd_update(target, (begin + tf.range(rows.shape[0]))[:, None], rows)


def _affine(x: Any, affine: Affine) -> Any:
    return tf.tensordot(x, affine.weight, 1) + affine.bias


def _layer_normalised(x: Any, affine: Affine) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, affine.bias, affine.weight, EPSILON)
