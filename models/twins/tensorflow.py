"""The rungs on TensorFlow: a `tf.function` of one step, compiled by XLA if Keras's is, and optimizers of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_matrix.models.twins.interface import AdamW, Batch, Compiled, RMSprop, Rung, optimizer_of
from keras_matrix.models.twins.keras_loop import KerasLoop
from keras_matrix.models.twins.tensorflow_networks import NETWORKS

Update = Callable[[Sequence[Any]], None]
"""Applies gradients to the variables."""


def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Callable[[], Rung]]:
    """Return what makes each rung for a Keras model of the workload."""
    weights = [one.value for one in model.trainable_variables]

    def own_variables() -> list[Any]:
        return [tf.Variable(one) for one in weights]

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
        self.variables = [one.value for one in self._weights]
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
        self._update([tf.convert_to_tensor(one) for one in gradients])


class _Steps:
    """A training step of this module: its loss, and its optimizer."""

    counts = False

    def __init__(self, model: Any, compiled: Compiled, loss: Callable[[Any, Any], Any], optimizer: Any) -> None:
        self._model, self._optimizer, self._steps = model, optimizer, 0
        self._loss = total = tf.Variable(0.0)

        def train_step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                found = loss(x, y)
            optimizer.apply(tape.gradient(found, optimizer.variables))
            total.assign_add(found)

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
        logits = network(variables, x)
        if y.shape.rank < logits.shape.rank:
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, logits))

    return loss


def _zeros(variables: Sequence[Any]) -> list[Any]:
    return [tf.Variable(tf.zeros_like(one)) for one in variables]


def _rmsprop(options: RMSprop, variables: Sequence[Any], count: Any) -> Update:
    squares = _zeros(variables)

    def update(gradients: Sequence[Any]) -> None:
        rate = options.rate / (1 + options.decay * tf.cast(count - 1, tf.float32))
        for variable, g, square in zip(variables, gradients, squares, strict=True):
            square.assign(options.rho * square + (1 - options.rho) * g**2)
            variable.assign_sub(rate * g / tf.sqrt(square + options.epsilon))

    return update


def _adamw(options: AdamW, variables: Sequence[Any], count: Any) -> Update:
    one, two = options.beta_1, options.beta_2
    means, squares = _zeros(variables), _zeros(variables)

    def update(gradients: Sequence[Any]) -> None:
        step = tf.cast(count, tf.float32)
        rate = options.rate * tf.sqrt(1 - two**step) / (1 - one**step)  # epsilon as in TensorFlow's own Adam
        for variable, g, mean, square in zip(variables, gradients, means, squares, strict=True):
            mean.assign(one * mean + (1 - one) * g)
            square.assign(two * square + (1 - two) * g**2)
            variable.assign_sub(options.rate * options.weight_decay * variable)
            variable.assign_sub(rate * mean / (tf.sqrt(square) + options.epsilon))

    return update
