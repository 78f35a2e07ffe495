"""Deviations between backends of known cause, each a mechanism that can occur in any workload.

A cause belongs to one backend: an operation that it computes inexactly; what all compute inexactly is a cause of each.
Whether it applies to a workload is decided from the facts reported by the backend's own parity process (optimizer,
hyperparameters, operations that ran), never from the name of the workload. A figure counts as explained only under two
conditions:

- it is within the cause's limit, which bounds the effect of the mechanism itself;
- with the operation computed exactly, on the same weights and batches, the figure is within its ordinary limit
  (`analysis.parity.deviations`), so that it has no other cause.

`tests/analysis/parity/test_known_deviations.py` reproduces each cause in a few lines, without a registered workload;
docs/parity.md lists sizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.instruments.parity import Facts, Operation

# The amplification of a deviation of one step over three steps: in bert 24 times in an update and 0.3 in a loss.
UPDATE_AMPLIFICATION, LOSS_AMPLIFICATION = 100.0, 10.0
MOST_BY_ADAM = 1e-3
# Of a row that occurs k times the step is up to sqrt(k) times too long: 0.1 of a table of tokens, of which few repeat,
# and 0.4 of one of relative positions, of which all do.
MOST_BY_REPEATED_ROWS = 1.0
STEPS = 3
FORWARD = ("loss", "gradient_norm", "gradient", "losses")

Limits = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class KnownCause:
    """A mechanism by which `backend` deviates: `limits` gives the largest deviation of each figure it may explain.

    It applies to parity processes for which `applies` is True; correcting `operation` excludes it.
    """

    text: str
    backend: str
    operation: Operation
    applies: Callable[[Facts], bool]
    limits: Callable[[Facts], Limits]
    precisions: tuple[str, ...] = ("float64",)


def applying(backends: Iterable[str], precision: str, facts: Mapping[str, Facts]) -> list[KnownCause]:
    """Return the causes by which these backends may deviate at this precision, by their reported facts."""
    return [
        cause
        for cause in CAUSES
        if cause.backend in backends
        and precision in cause.precisions
        and cause.backend in facts
        and cause.applies(facts[cause.backend])
    ]


def adam_step_error(beta_1: float, beta_2: float) -> float:
    """Return the relative error of Adam's step with both betas rounded to float32.

    Only the bias correction sqrt(1 - beta_2**t) / (1 - beta_1**t) is affected; the moments use the exact betas. The
    largest over the steps of a float64 parity process.
    """

    def correction(one: float, two: float, step: int) -> float:
        return math.sqrt(1 - two**step) / (1 - one**step)

    rounded = (_float32(beta_1), _float32(beta_2))
    if not (0 <= max(*rounded, beta_1, beta_2) < 1):
        return 0.0
    exact_and_rounded = ((correction(beta_1, beta_2, t), correction(*rounded, t)) for t in range(1, STEPS + 1))
    return max(abs(inexact / exact - 1) for exact, inexact in exact_and_rounded)


def _float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def _is_adam(facts: Facts) -> bool:
    return facts.optimizer in ("Adam", "AdamW") and {"beta_1", "beta_2"} <= facts.hyperparameters.keys()


def _adam_limits(facts: Facts) -> Limits:
    error = adam_step_error(facts.hyperparameters["beta_1"], facts.hyperparameters["beta_2"])
    amplified = {"update": UPDATE_AMPLIFICATION * error, "losses": LOSS_AMPLIFICATION * error}
    return {figure: min(MOST_BY_ADAM, limit) for figure, limit in amplified.items()}


# The hyperparameters that Keras 3.15 passes through tf.cast or an initializer, by optimizer; weight decay in all.
_ROUNDED = {
    "Adafactor": ("epsilon_2",),
    "Adagrad": ("initial_accumulator_value",),
    "Adamax": ("beta_1",),
    "Ftrl": ("initial_accumulator_value",),
    "Lamb": ("beta_1", "beta_2"),
    "Lion": ("beta_1", "beta_2"),
    "Muon": ("adam_beta_1", "adam_beta_2"),
    "Nadam": ("beta_1", "beta_2"),
    "SGD": ("momentum",),
    "ScheduleFreeAdamW": ("beta_1", "beta_2"),
}


def _rounds_constants(facts: Facts) -> bool:
    names = (*_ROUNDED.get(facts.optimizer, ()), "weight_decay")
    values = [facts.hyperparameters.get(name, 0.0) for name in names]
    # Compared with Adam's betas its weight decay is negligible: 1e-10 of a step.
    return facts.scheduled or (not _is_adam(facts) and any(_float32(value) != value for value in values))


def _ran(operation: Operation) -> Callable[[Facts], bool]:
    return lambda facts: operation in facts.operations


# These do not square a gradient, and take the same step for a repeated token on every backend.
_LINEAR_IN_ROWS = ("SGD", "Lion", "Adamax")


def _squares_rows(facts: Facts) -> bool:
    return Operation.REPEATED_ROWS in facts.operations and facts.optimizer not in _LINEAR_IN_ROWS


def _fixed(update: float, forward: float | None = None, losses: float | None = None) -> Callable[[Facts], Limits]:
    limits = {"update": update}
    limits |= {} if forward is None else dict.fromkeys(FORWARD, forward)
    limits |= {} if losses is None else {"losses": losses}
    return lambda _: limits


# fmt: off
CAUSES = (
    KnownCause(
        "Keras on TensorFlow rounds Adam's beta_1 and beta_2 to float32 in the bias correction, also in float64",
        "tensorflow", Operation.PYTHON_FLOATS, _is_adam, _adam_limits),
    KnownCause(
        "Keras on TensorFlow rounds an optimizer's constants and scheduled learning rates to float32, also in float64",
        "tensorflow", Operation.PYTHON_FLOATS, _rounds_constants, _fixed(update=1e-5, losses=1e-5)),
    KnownCause(
        "tf.nn.gelu multiplies by 1/sqrt(2) rounded to float32, also in float64",
        "tensorflow", Operation.GELU, _ran(Operation.GELU), _fixed(update=5e-6, forward=1e-7)),
    KnownCause(
        "Keras on TensorFlow hands an embedding's gradient to the optimizer as rows, and squares the rows of a token "
        "that repeats within a batch one by one instead of their sum: its second moment is too small, its step too "
        "long",
        "tensorflow", Operation.REPEATED_ROWS, _squares_rows, _fixed(update=MOST_BY_REPEATED_ROWS, losses=5e-3),
        ("float64", "float32")),
    KnownCause(
        "Keras on JAX takes the softmax of dot-product attention in float32, whatever the precision "
        "(jax.nn.dot_product_attention and Keras's own form of it)",
        "jax", Operation.ATTENTION_SOFTMAX, _ran(Operation.ATTENTION_SOFTMAX), _fixed(update=5e-4, forward=1e-4)),
    *(KnownCause(
        "layers compute in float32 also in float64, as KerasHub's normalisations, rotary embeddings and softmax do, "
        "and each backend rounds differently",
        backend, Operation.FLOAT32_LAYERS, _ran(Operation.FLOAT32_LAYERS), _fixed(update=1e-4, forward=1e-5))
      for backend in BACKENDS),
)
# fmt: on
