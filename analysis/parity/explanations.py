"""Explanations of deviations between parity processes, and the known causes. Pure functions.

- A known cause: within the cause's limit, and with the inexact operation computed
  exactly the figure is within its ordinary limit.
- Float32 losses over all steps: at most `OWN_FACTOR` times the deviation of one of the two backends from itself with
  two threads instead of one. Training amplifies rounding, and the order of a sum is rounding.
- Any other float32 figure, under three conditions: the float64 one is within its limit; the float32 one is at most
  `ROUNDING_FACTOR` times the deviation of each backend from its own float64 (a loss and a norm may agree by chance: for
  them the gradient is compared); and it is at most `NUDGE_FACTOR` times the deviation of one of the two from itself
  when each weight moves by one unit in its last place, as rounding moves it.

A known cause is a mechanism that can occur in any workload. It belongs to one backend: an operation that it computes
inexactly; what all compute inexactly is a cause of each. Whether it applies to a workload is decided from the facts
reported by the backend's own parity process (optimizer, hyperparameters, operations that ran), never from the name of
the workload. A figure counts as explained only under two conditions:

- it is within the cause's limit, which bounds the effect of the mechanism itself;
- with the operation computed exactly, on the same weights and batches, the figure is within its ordinary limit
  (`analysis.parity.deviations`), so that it has no other cause.

`tests/analysis/parity/test_known_deviations.py` reproduces each cause in a few lines, without a registered workload;
docs/parity.md lists sizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.parity.deviations import LIMITS
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.instruments.parity import Deviation, Facts, Operation, Pair, ParityFinding

OWN_FACTOR = 3.0
ROUNDING_FACTOR = 10.0
NUDGE_FACTOR = 3.0
TRAINING = ("float32", "losses")
# Single numbers, and the vector figure whose rounding causes theirs.
NUMBERS = {"loss": "gradient", "gradient_norm": "gradient"}
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
class DeviationEvidence:
    """Evidence for explanations, by backend: the deviation of its float32 losses with two threads, of its float32 from
    its own float64, of its float32 with nudged weights, and the facts of its parity process."""

    own: Mapping[str, float] = field(default_factory=dict)
    rounding: Mapping[str, Deviation] = field(default_factory=dict)
    nudged: Mapping[str, Deviation] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)


def explained(pair: Pair, evidence: DeviationEvidence) -> Pair:
    """Return the pair with explanations for findings due to a known cause or to the backends' own rounding."""

    def with_explanation(finding: ParityFinding) -> ParityFinding:
        text = _known(finding, pair, evidence.facts) or _within_own(finding, pair, evidence.own)
        return replace(finding, explanation=text or _within_rounding(finding, pair, evidence))

    return replace(pair, findings=list(map(with_explanation, pair.findings)))


def correctable(pair: Pair, facts: Mapping[str, Facts]) -> dict[tuple[str, str], frozenset[Operation]]:
    """Return, by backend and precision, the operations to compute exactly before known causes may explain the pair.

    All that apply to a backend are corrected together, so that the remaining deviation has no known cause.
    """
    found: dict[tuple[str, str], frozenset[Operation]] = {}
    for finding in pair.findings:
        if not _candidates(finding, pair, facts):
            continue
        for cause in applying(pair.backends, finding.precision, facts):
            key = (cause.backend, finding.precision)
            found[key] = found.get(key, frozenset()) | {cause.operation}
    return found


def _candidates(finding: ParityFinding, pair: Pair, facts: Mapping[str, Facts]) -> list[KnownCause]:
    """Return the causes that apply and may be as large as the finding."""
    value = finding.value
    if value is None:
        return []
    causes = applying(pair.backends, finding.precision, facts)
    return [cause for cause in causes if value <= cause.limits(facts[cause.backend]).get(finding.figure, 0.0)]


def _known(finding: ParityFinding, pair: Pair, facts: Mapping[str, Facts]) -> str | None:
    """Return the causes that may be as large as the finding, if no deviation remains once all are corrected."""
    causes = _candidates(finding, pair, facts)
    remaining = getattr(pair.corrected.get(finding.precision), finding.figure, None)
    if not causes or remaining is None or remaining > finding.limit:
        return None
    texts = "; ".join(dict.fromkeys(cause.text for cause in causes))
    return f"{texts}. Computed exactly instead, this figure is {f'{remaining:.0e}' if remaining else '0'}"


def is_unexplained_training(finding: ParityFinding) -> bool:
    """Return whether the finding is of float32 losses and is not explained yet."""
    return (finding.precision, finding.figure) == TRAINING and finding.explanation is None


def needs_nudge(pair: Pair, rounding: Mapping[str, Deviation]) -> bool:
    """Return whether the deviation of nudged weights is all that is missing to explain some figure."""
    return any(
        finding.explanation is None and _alike_rounded(finding, pair, rounding) is not None for finding in pair.findings
    )


def largest(deviations: Sequence[Deviation]) -> Deviation:
    """Return the largest of each figure of steps 1 and 2, None if it could not be computed."""

    def most(figure: str) -> float | None:
        return max((value for one in deviations if (value := getattr(one, figure)) is not None), default=None)

    loss, norm, gradient, update = map(most, ("loss", "gradient_norm", "gradient", "update"))
    return Deviation(loss=loss, gradient_norm=norm, gradient=gradient, update=update)


def _within_own(finding: ParityFinding, pair: Pair, own: Mapping[str, float]) -> str | None:
    if (finding.precision, finding.figure) != TRAINING or finding.value is None:
        return None
    for backend in sorted(pair.backends, key=lambda name: -own.get(name, 0.0)):
        if finding.value <= OWN_FACTOR * own.get(backend, 0.0):
            return (
                f"training amplifies rounding: {backend} deviates from itself by {own[backend]:.1e} when one thread "
                f"becomes two, and {finding.value:.1e} is within {OWN_FACTOR:g} times that"
            )
    return None


def _within_rounding(finding: ParityFinding, pair: Pair, evidence: DeviationEvidence) -> str | None:
    """Explain a float32 figure by rounding: both backends must round so, and a nudge of one must show as much."""
    alike = _alike_rounded(finding, pair, evidence.rounding)
    if alike is None or finding.value is None:
        return None
    for backend in pair.backends:
        moved = getattr(evidence.nudged.get(backend), finding.figure, None) or 0.0
        if finding.value <= NUDGE_FACTOR * moved:
            return (
                f"rounding, which this network amplifies: {backend} deviates from itself by {moved:.1e} when each "
                f"weight moves by one unit in its last place; {alike}"
            )
    return None


def _alike_rounded(finding: ParityFinding, pair: Pair, rounding: Mapping[str, Deviation]) -> str | None:
    """Return the text that float64 agrees and both backends deviate similarly from their own; None if not."""
    exact = getattr(pair.corrected.get("float64", pair.deviations.get("float64")), finding.figure, None)
    if finding.precision != "float32" or finding.figure == "losses" or finding.value is None or exact is None:
        return None
    figure = NUMBERS.get(finding.figure, finding.figure)
    value = getattr(pair.deviations.get("float32"), figure, None) if figure != finding.figure else finding.value
    rounded = {backend: getattr(rounding.get(backend), figure, None) for backend in pair.backends}
    own = {backend: apart for backend, apart in rounded.items() if apart is not None}
    if value is None or len(own) < len(rounded) or exact > LIMITS["float64"][finding.figure]:
        return None
    if value > ROUNDING_FACTOR * min(own.values()):
        return None
    parts = " and ".join(f"{backend}'s {figure} is {apart:.1e} from its own float64" for backend, apart in own.items())
    return f"{parts}, in which the two agree to {exact:.0e}"


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
