"""The ladder of implementations of training from Keras's `fit` to plain framework code, and what each rung must do.

Neighbouring rungs differ in one thing, so that the difference of their times says what that thing costs:

    keras        `fit`
    loop         Keras's compiled training step in a plain loop: without callbacks, data adapter and epoch iterator
    no_metrics   a step as in Keras's guide to custom training: Keras's layers, loss and optimizer, without metrics
    layers       the same with the optimizer of the framework instead of Keras's
    native       the network in plain framework code: layers, loss and optimizer

All begin with the weights of one Keras model. Limit: rungs above `loop` exist for `TRAINED`, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

Batch = tuple[Any, ...]
# How far losses in float32 may be from Keras's, relative, at the first step and later ones: those of `runner parity`.
FIRST_LOSS_LIMIT, LOSSES_LIMIT = 1e-5, 1e-3


class Rung(Protocol):
    """Trains one step after the other. Construct it after the model's optimizer was built.

    `counts` says whether its steps count updates and samples in the Keras model, as `fit` does.
    """

    counts: bool

    def begin_epoch(self) -> None:
        """Forget the losses of earlier steps."""

    def step(self, batch: Batch) -> None:
        """Train one step on a batch `(x, y)` on the device; it may return before the step is computed."""

    def end_epoch(self) -> dict[str, float]:
        """Wait for all steps; return the mean loss since `begin_epoch` as `loss`, and the model's metrics if any."""

    def updates(self) -> int:
        """Return the updates that the optimizer itself counted since it was made, read while idle."""

    def write_back(self) -> None:
        """Give the Keras model the current weights."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """Whether the step is compiled, as Keras does it: `jit` with XLA or torch.compile, or `eager` without a graph."""

    jit: bool
    eager: bool

    @staticmethod
    def of(model: Any) -> Compiled:
        """Return how Keras compiles a step of the model."""
        is_eager = bool(model.run_eagerly)
        return Compiled(bool(model.jit_compile) and not is_eager, is_eager)


class Native(NamedTuple):
    """A twin that is called and not trained, with a copy of the model's weights.

    `forward` returns the outputs of `model(x)`, `gradients` the loss of a batch, its gradients and the logits, and
    `in_keras` gradients in the order and layout of the model's trainable weights. A call may return before it has
    computed.
    """

    forward: Callable[[Any], Any]
    gradients: Callable[[Any, Any], tuple[Any, Sequence[Any], Any]]
    in_keras: Callable[[Sequence[Any]], list[NDArray[Any]]]


class AtInference:
    """A Keras model as the networks read it without dropout."""

    def __init__(self, model: Any) -> None:
        self.trainable_variables, self.layers = model.trainable_variables, model.layers


@dataclass(frozen=True, slots=True)
class RMSprop:
    """Keras's RMSprop: step t has the rate `rate / (1 + decay * t)`; `epsilon` is inside the square root."""

    rate: float
    rho: float
    epsilon: float
    decay: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay."""

    rate: float
    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float


Optimizer = RMSprop | AdamW


def optimizer_of(model: Any) -> Optimizer:
    """Return the options of the model's Keras optimizer. Raises ValueError for one that has no native form here."""
    optimizer = model.optimizer
    options = optimizer.get_config()
    kind = type(optimizer).__name__
    if kind == "RMSprop" and not options["momentum"] and not options["centered"]:
        rate = options["learning_rate"]
        decay = 0.0
        if isinstance(rate, dict) and rate["class_name"] == "InverseTimeDecay" and rate["config"]["decay_steps"] == 1:
            rate, decay = rate["config"]["initial_learning_rate"], rate["config"]["decay_rate"]
        return RMSprop(float(rate), options["rho"], options["epsilon"], float(decay))
    if kind == "AdamW" and not options["amsgrad"]:
        names = ("beta_1", "beta_2", "epsilon", "weight_decay")
        return AdamW(float(options["learning_rate"]), *(float(options[name]) for name in names))
    raise ValueError(f"optimizer: no native form of {kind} with these options: {options}")


def drop_rates(model: Any) -> tuple[float, ...]:
    """Return the rates of the model's dropout layers, in their order."""
    is_off = isinstance(model, AtInference)
    return tuple(0.0 if is_off else float(layer.rate) for layer in model.layers if type(layer).__name__ == "Dropout")


def ends_in_softmax(model: Any) -> bool:
    """Return whether the model returns probabilities, not logits."""
    return getattr(getattr(model.layers[-1], "activation", None), "__name__", "") == "softmax"


def heads_of(model: Any) -> int:
    """Return the number of attention heads of each block."""
    return int(next(layer.num_heads for layer in model.layers if type(layer).__name__ == "MultiHeadAttention"))


class KerasLoop:
    """Keras's training function in a loop, as `fit` calls it; a backend's own class adds the step."""

    counts = True

    def __init__(self, model: Any) -> None:
        self.model = model
        model.make_train_function()

    def begin_epoch(self) -> None:
        """Reset the metrics, as `fit` does."""
        self.model.reset_metrics()

    def end_epoch(self) -> dict[str, float]:
        """Read the metrics, as `fit` does."""
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}

    def updates(self) -> int:
        """Return what the optimizer counted."""
        return int(self.model.optimizer.iterations.value)

    def write_back(self) -> None:
        """Do nothing: the weights are the model's."""
