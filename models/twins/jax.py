"""The rungs on JAX: one jitted function with a donated state for each, and optimizers as functions of lists of arrays.

optax is not needed: its RMSprop and AdamW compile to programs of the same size (docs/keras-cost.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from keras_matrix.models.twins.interface import AdamW, Batch, Compiled, RMSprop, Rung, drop_rates, optimizer_of
from keras_matrix.models.twins.jax_networks import NETWORKS
from keras_matrix.models.twins.keras_loop import KerasLoop

Loss = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""From parameters, further state, inputs and targets to the loss and the new further state."""
Update = Callable[[Any, Any, Any], tuple[Any, Any]]
"""From gradients, the optimizer's state and parameters to new parameters and the new state."""

# The parts of the state that Keras's training function takes and returns, in its order.
STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


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
        params = [jnp.array(one.value) for one in model.trainable_variables]
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

    return loss, [jnp.array(one.value) for one in model.non_trainable_variables]


def _keras_update(model: Any) -> tuple[Update, Any]:
    """Return the update by Keras's optimizer."""

    def update(gradients: Any, slots: Any, params: Any) -> tuple[Any, Any]:
        params, slots = model.optimizer.stateless_apply(slots, gradients, params)
        return params, slots

    return update, [jnp.array(one.value) for one in model.optimizer.variables]


def _own_loss(model: Any, workload: str, seed: int) -> tuple[Loss, Any]:
    """Return the twin's loss; further state is the key of its dropout masks, if it has dropout."""
    network = NETWORKS[workload](model)
    drops = any(drop_rates(model))

    def loss(params: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
        key, own = jax.random.split(key) if drops else (key, key)
        likely = jax.nn.log_softmax(network(params, x, own))
        if y.ndim < likely.ndim:
            return -jnp.mean(jnp.take_along_axis(likely, y[..., None], axis=-1)), key
        return -jnp.mean(jnp.sum(y * likely, axis=-1)), key

    return loss, jax.random.key(seed)


def _own_update(model: Any) -> tuple[Update, Any]:
    """Return the update by plain JAX, with the options of the model's optimizer."""
    options = optimizer_of(model)

    def zeros() -> list[Any]:
        return [jnp.zeros_like(one.value) for one in model.trainable_variables]

    step = jnp.zeros((), jnp.int32)
    if isinstance(options, RMSprop):
        return _rmsprop(options), {"step": step, "squares": zeros()}
    return _adamw(options), {"step": step, "means": zeros(), "squares": zeros()}


def _rmsprop(options: RMSprop) -> Update:
    def update(gradients: Sequence[Any], slots: Any, params: Sequence[Any]) -> tuple[Any, Any]:
        rate = options.rate / (1 + options.decay * slots["step"])
        squares = [options.rho * v + (1 - options.rho) * g**2 for v, g in zip(slots["squares"], gradients, strict=True)]
        moved = [
            p - rate * g / jnp.sqrt(v + options.epsilon) for p, g, v in zip(params, gradients, squares, strict=True)
        ]
        return moved, {"step": slots["step"] + 1, "squares": squares}

    return update


def _adamw(options: AdamW) -> Update:
    one, two = options.beta_1, options.beta_2

    def update(gradients: Sequence[Any], slots: Any, params: Sequence[Any]) -> tuple[Any, Any]:
        step = slots["step"] + 1
        means = [one * m + (1 - one) * g for m, g in zip(slots["means"], gradients, strict=True)]
        squares = [two * v + (1 - two) * g**2 for v, g in zip(slots["squares"], gradients, strict=True)]
        corrected, scale = 1 - one**step, 1 - two**step
        moved = [
            p - options.rate * (m / corrected / (jnp.sqrt(v / scale) + options.epsilon) + options.weight_decay * p)
            for p, m, v in zip(params, means, squares, strict=True)
        ]
        return moved, {"step": step, "means": means, "squares": squares}

    return update
