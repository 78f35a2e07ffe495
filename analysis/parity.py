"""Deviations between the parity processes of two backends, their location, and earlier comparisons.

Pure functions. Two parity processes of one workload start from the same weights and process the same batches. Any
difference beyond rounding is a defect of a backend, of Keras or of the workload, and their speeds should not be
compared before it is understood.

`LIMITS` defines the compared figures and their largest deviations. Deviations of vectors are |a - b| / max(|a|, |b|) in
the Euclidean norm, those of numbers the same in absolute value. Two things are excluded, by these rules:

- A gradient or an update that is zero except for rounding: on one backend below `ZERO["float64"]` of the norm of all
  together, and on no backend above `ZERO["float32"]` of it. Examples are the gradient of a bias just before a
  normalisation or of the bias of attention's keys, and the update of a mean that is zero. Its direction is noise, which
  an adaptive optimiser turns into full steps. It is listed.
- The part of an update's deviation that the resolution of the weight itself explains: a weight of norm w is stored to
  `resolution * w`, so that an update, the difference of two, cannot be more exact.

Two processes that only predict are compared by their outputs of the first batch. No further process explains a
deviation beyond the limit.

`runner.checks.parity` runs the processes. What explains a figure beyond its limit:

- A known cause: within the cause's limit, and with the inexact operation computed exactly the figure is within its
  ordinary limit.
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
- with the operation computed exactly, on the same weights and batches, the figure is within its ordinary limit, so
  that it has no other cause.

`tests/analysis/parity/test_known_deviations.py` reproduces each cause in a few lines, without a registered workload;
docs/lab/parity.md lists sizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.instruments.parity import (
    Deviation,
    Facts,
    Operation,
    Pair,
    ParityFinding,
    ParityOutput,
    Sketch,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Appended to a comparison that is shown with figures of another device.
ON_A_CPU = ", compared on a CPU"
# By precision and figure: the largest deviation that counts as agreement.
LIMITS: Mapping[str, Mapping[str, float]] = {
    "float64": {"loss": 1e-10, "gradient_norm": 1e-8, "gradient": 1e-8, "update": 1e-6, "losses": 1e-6},
    "float32": {"loss": 1e-5, "gradient_norm": 1e-4, "gradient": 1e-2, "update": 5e-2, "losses": 1e-3},
}
OUTPUTS = "outputs"
OUTPUTS_LIMITS = {"float64": 1e-10, "float32": 1e-5}
RESOLUTION = {"float64": 2.0**-52, "float32": 2.0**-23}
ZERO = {"float64": 1e-12, "float32": 1e-6}
# Among 15,000 compared weights, no difference beyond this is expected by chance.
INITIAL_LIMIT = 6.0
SKETCH_LIMIT = {"float64": 1e-9, "float32": 1e-3}
WORST_WEIGHT = {"gradient": "gradient_at", "update": "update_at"}
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
class ParityProcess:
    """One process's output and its arrays: `arrays("gradient", i)` is that of weight i. Read one at a time."""

    backend: str
    trace: ParityOutput
    arrays: Callable[[str, int], NDArray[Any]]


def compared_pairs(backends: Iterable[str]) -> list[tuple[str, str]]:
    """Return every pair of backends, in their usual order."""
    return list(combinations(sorted(backends, key=BACKENDS.index), 2))


def zeros(processes: Sequence[ParityProcess], precision: str, kind: str) -> frozenset[int]:
    """Return the weights whose `kind`, gradient or update, is zero except for rounding in these processes."""
    norms = []
    for process in processes:
        norms_by_weight = {i: _norm(process.arrays(kind, i)) for i in _of_kind(process.trace, kind)}
        total = sum(norm**2 for norm in norms_by_weight.values()) ** 0.5 or 1.0
        norms.append({i: norm / total for i, norm in norms_by_weight.items()})
    return frozenset(
        i
        for i in norms[0]
        if min(process_norms[i] for process_norms in norms) <= ZERO[precision]
        and max(process_norms[i] for process_norms in norms) <= ZERO["float32"]
    )


@dataclass(frozen=True, slots=True)
class Zeros:
    """The weights whose gradient, and those whose update, is zero except for rounding: excluded from vector figures."""

    gradient: frozenset[int] = frozenset()
    update: frozenset[int] = frozenset()


NO_ZEROS = Zeros()


def deviation(a: ParityProcess, b: ParityProcess, precision: str, zero: Zeros = NO_ZEROS) -> Deviation:
    """Return the deviations between two processes of one precision."""
    trainable, weights = _of_kind(a.trace, "gradient"), a.trace.weights
    indices = [i for i in trainable if i not in zero.gradient]
    gradient, gradient_at = _worst(indices, lambda i: _apart(a.arrays("gradient", i), b.arrays("gradient", i), 0.0))
    update, update_at = worst_update(a, b, precision, zero.update | zero.gradient)
    norms = [sum(_norm(process.arrays("gradient", i)) ** 2 for i in trainable) ** 0.5 for process in (a, b)]
    return Deviation(
        loss=_relative(a.trace.losses[0], b.trace.losses[0]),
        gradient_norm=_relative(*norms),
        gradient=gradient,
        gradient_at=None if gradient_at is None else weights[gradient_at].path,
        update=update,
        update_at=update_at,
        losses=worst_loss(a.trace.losses, b.trace.losses),
    )


def outputs_deviation(a: ParityProcess, b: ParityProcess) -> Deviation:
    """Return the deviation of the outputs of two processes that predicted."""
    if a.trace.outputs != b.trace.outputs:
        return Deviation()
    return Deviation(
        outputs=_worst(range(a.trace.outputs), lambda i: _apart(a.arrays("output", i), b.arrays("output", i), 0.0))[0]
    )


def outputs_findings(precision: str, observed: Deviation) -> list[ParityFinding]:
    """Return the finding that outputs are beyond their limit, or that they could not be compared."""
    limit = OUTPUTS_LIMITS[precision]
    is_within = observed.outputs is not None and observed.outputs <= limit
    return [] if is_within else [ParityFinding(precision, OUTPUTS, observed.outputs, limit)]


def worst_update(
    a: ParityProcess, b: ParityProcess, precision: str, zero: frozenset[int]
) -> tuple[float | None, str | None]:
    """Return the deviation of the update of the worst weight and its path, without the weights in `zero`."""
    moving = [i for i in _of_kind(a.trace, "update") if i not in zero]
    update, index = _worst(moving, lambda i: _updates_apart(a, b, precision, i))
    return update, None if index is None else a.trace.weights[index].path


def unlike_updates(a: ParityProcess, b: ParityProcess, precision: str, limit: float) -> frozenset[int]:
    """Return the weights whose updates deviate by more than a limit."""
    deviations = {i: _updates_apart(a, b, precision, i) for i in _of_kind(a.trace, "update")}
    return frozenset(i for i, value in deviations.items() if value is None or value > limit)


def _updates_apart(a: ParityProcess, b: ParityProcess, precision: str, i: int) -> float | None:
    unresolved = RESOLUTION[precision] * (a.trace.weights[i].norm or 0.0)
    return _apart(a.arrays("update", i), b.arrays("update", i), unresolved)


def initializer_findings(precision: str, a: ParityOutput, b: ParityOutput) -> list[ParityFinding]:
    """Return a finding if two backends draw a weight's initial values from different distributions.

    Their numbers differ: mean and spread are compared, in standard errors; those of constants exactly.
    """

    def unlike(i: int) -> float | None:
        initial, other = a.weights[i].initial, b.weights[i].initial
        if initial is None or other is None:
            return 0.0
        return _standard_errors(initial, other, math.prod(a.weights[i].shape))

    worst, index = _worst(range(min(len(a.weights), len(b.weights))), unlike)
    if worst is not None and worst <= INITIAL_LIMIT:
        return []
    return [ParityFinding(precision, "initial", worst, INITIAL_LIMIT, None if index is None else a.weights[index].path)]


def _standard_errors(a: Sequence[float], b: Sequence[float], weight_count: int) -> float | None:
    """Return how far apart two draws' means or standard deviations are, at most; None for unequal constants."""
    spread = max(a[1], b[1])
    if min(a[1], b[1]) == 0.0:
        return 0.0 if list(a) == list(b) else None  # beyond any limit
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / (spread * math.sqrt(2 / weight_count))


def worst_loss(a: Sequence[float | None], b: Sequence[float | None]) -> float | None:
    """Return the largest relative deviation over the common steps, None if a loss was not finite."""
    deviations = [_relative(x, y) for x, y in zip(a, b, strict=False)]
    return None if any(value is None for value in deviations) else max(filter(None, deviations), default=0.0)


def findings(precision: str, observed: Deviation) -> list[ParityFinding]:
    """Return the figures beyond their limit. A figure that could not be computed is beyond any limit."""
    parity_findings = []
    for figure, limit in LIMITS[precision].items():
        value = getattr(observed, figure)
        if value is None or value > limit:
            place = getattr(observed, WORST_WEIGHT[figure]) if figure in WORST_WEIGHT else None
            parity_findings.append(ParityFinding(precision, figure, value, limit, place))
    return parity_findings


def first_differing_layer(a: Sequence[Sketch], b: Sequence[Sketch], precision: str) -> str | None:
    """Return the first layer whose output differs between two forward passes, in the order of `a`."""
    sketches_by_layer: dict[str, list[Sketch]] = {}
    for sketch in b:
        sketches_by_layer.setdefault(plain(sketch.layer), []).append(sketch)
    for sketch in a:
        # A layer within a backend's compiled loop is recorded on one side only: its loop's output is on both.
        waiting_sketches = sketches_by_layer.get(plain(sketch.layer))
        if waiting_sketches and _sketches_differ(sketch, waiting_sketches.pop(0), SKETCH_LIMIT[precision]):
            return sketch.layer
    return None


def last_differing_weight(a: ParityProcess, b: ParityProcess, precision: str, zero: Zeros = NO_ZEROS) -> str | None:
    """Return the weight nearest the output whose gradient differs: an error in it spreads towards the input."""
    for i in reversed(_of_kind(a.trace, "gradient")):
        if i in zero.gradient:
            continue
        relative_deviation = _apart(a.arrays("gradient", i), b.arrays("gradient", i), 0.0)
        if relative_deviation is None or relative_deviation > LIMITS[precision]["gradient"]:
            return a.trace.weights[i].path
    return None


def backward_difference(
    pair: Pair, processes: tuple[ParityProcess, ParityProcess], precision: str, zero: Zeros = NO_ZEROS
) -> str:
    """Return where two backends with equal layer outputs differ: loss, gradient, optimiser or later training."""
    unexplained = {finding.figure for finding in pair.findings if finding.explanation is None}
    if unexplained == {"initial"}:
        return f"the initialiser of {next(finding.at for finding in pair.findings if finding.figure == 'initial')}"
    if "loss" in unexplained:
        return "the loss; every layer's output agrees"
    weight = last_differing_weight(*processes, precision, zero)
    if weight is not None:
        return f"the gradient of {weight}; every layer's output agrees"
    if "update" in unexplained:
        moved_weight = pair.corrected.get(precision, pair.deviations[precision]).update_at
        is_learnt = any(weight.trainable and weight.path == moved_weight for weight in processes[0].trace.weights)
        culprit = "the optimiser's step on" if is_learnt else "the statistic"
        return f"{culprit} {moved_weight}; every gradient agrees"
    return "the training after step 1; its gradients agree"


def plain(name: str) -> str:
    """Return a name without the numbers that Keras adds to make it unique."""
    return "/".join(part.rstrip("0123456789").rstrip("_") or part for part in name.split("/"))


def _of_kind(trace: ParityOutput, kind: str) -> list[int]:
    """Return the weights that have a gradient, or an update."""
    return [i for i, weight in enumerate(trace.weights) if weight.trainable or kind == "update"]


def _norm(array: NDArray[Any]) -> float:
    import numpy as np

    return float(np.linalg.norm(array.astype("float64", copy=False).ravel()))


def _apart(a: NDArray[Any], b: NDArray[Any], unresolved: float) -> float | None:
    """Return |a - b|, less `unresolved`, over the larger norm; None if a value is not finite."""
    difference = _norm(a.astype("float64", copy=False) - b.astype("float64", copy=False))
    larger = max(_norm(a), _norm(b))
    if not math.isfinite(difference) or not math.isfinite(larger):
        return None
    excess = max(0.0, difference - unresolved)
    return excess / larger if excess else 0.0


def _relative(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not math.isfinite(a) or not math.isfinite(b):
        return None
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _worst(indices: Iterable[int], measure: Callable[[int], float | None]) -> tuple[float | None, int | None]:
    """Return the largest value and its index; if a value could not be computed, None and its index."""
    worst, index = 0.0, None
    for i in indices:
        value = measure(i)
        if value is None:
            return None, i
        if value > worst:
            worst, index = value, i
    return worst, index


def _sketches_differ(a: Sketch, b: Sketch, limit: float) -> bool:
    if a.size != b.size:
        return True
    scale = max(a.norm, b.norm)
    distance = max(abs(a.norm - b.norm), *(abs(x - y) for x, y in zip(a.projections, b.projections, strict=True)))
    return scale > 0 and distance > limit * scale


@dataclass(frozen=True, slots=True)
class DeviationEvidence:
    """Evidence for explanations, by backend: the deviation of its float32 losses with two threads, of its float32 from
    its own float64, of its float32 with nudged weights, and the facts of its parity process."""

    own: Mapping[str, float] = field(default_factory=dict)
    rounding: Mapping[str, Deviation] = field(default_factory=dict)
    nudged: Mapping[str, Deviation] = field(default_factory=dict)
    facts: Mapping[str, Facts] = field(default_factory=dict)


def explained_pairs(pair: Pair, evidence: DeviationEvidence) -> Pair:
    """Return the pair with explanations for findings due to a known cause or to the backends' own rounding."""

    def with_explanation(finding: ParityFinding) -> ParityFinding:
        text = _known(finding, pair, evidence.facts) or _within_own(finding, pair, evidence.own)
        return replace(finding, explanation=text or _within_rounding(finding, pair, evidence))

    return replace(pair, findings=list(map(with_explanation, pair.findings)))


def correctable(pair: Pair, facts: Mapping[str, Facts]) -> dict[tuple[str, str], frozenset[Operation]]:
    """Return, by backend and precision, the operations to compute exactly before known causes may explain the pair.

    All that apply to a backend are corrected together, so that the remaining deviation has no known cause.
    """
    operations: dict[tuple[str, str], frozenset[Operation]] = {}
    for finding in pair.findings:
        if not _candidates(finding, pair, facts):
            continue
        for cause in applying(pair.backends, finding.precision, facts):
            key = (cause.backend, finding.precision)
            operations[key] = operations.get(key, frozenset()) | {cause.operation}
    return operations


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
    exact_value = getattr(pair.corrected.get(finding.precision), finding.figure, None)
    if not causes or exact_value is None or exact_value > finding.limit:
        return None
    causes_text = "; ".join(dict.fromkeys(cause.text for cause in causes))
    return f"{causes_text}. Computed exactly instead, this figure is {f'{exact_value:.0e}' if exact_value else '0'}"


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
        return max((value for observed in deviations if (value := getattr(observed, figure)) is not None), default=None)

    loss, norm, gradient, update = map(most, ("loss", "gradient_norm", "gradient", "update"))
    return Deviation(loss=loss, gradient_norm=norm, gradient=gradient, update=update)


def _within_own(finding: ParityFinding, pair: Pair, noise: Mapping[str, float]) -> str | None:
    if (finding.precision, finding.figure) != TRAINING or finding.value is None:
        return None
    for backend in sorted(pair.backends, key=lambda name: -noise.get(name, 0.0)):
        if finding.value <= OWN_FACTOR * noise.get(backend, 0.0):
            return (
                f"training amplifies rounding: {backend} deviates from itself by {noise[backend]:.1e} when one thread "
                f"becomes two, and {finding.value:.1e} is within {OWN_FACTOR:g} times that"
            )
    return None


def _within_rounding(finding: ParityFinding, pair: Pair, evidence: DeviationEvidence) -> str | None:
    """Explain a float32 figure by rounding: both backends must round so, and a nudge of one must show as much."""
    alike = _alike_rounded(finding, pair, evidence.rounding)
    if alike is None or finding.value is None:
        return None
    for backend in pair.backends:
        nudged_by = getattr(evidence.nudged.get(backend), finding.figure, None) or 0.0
        if finding.value <= NUDGE_FACTOR * nudged_by:
            return (
                f"rounding, which this network amplifies: {backend} deviates from itself by {nudged_by:.1e} when each "
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
    gaps = {backend: gap for backend, gap in rounded.items() if gap is not None}
    if value is None or len(gaps) < len(rounded) or exact > LIMITS["float64"][finding.figure]:
        return None
    if value > ROUNDING_FACTOR * min(gaps.values()):
        return None
    gaps_text = " and ".join(f"{backend}'s {figure} is {gap:.1e} from its own float64" for backend, gap in gaps.items())
    return f"{gaps_text}, in which the two agree to {exact:.0e}"


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

    def correction(beta_1: float, two: float, step: int) -> float:
        return math.sqrt(1 - two**step) / (1 - beta_1**step)

    rounded = (_float32(beta_1), _float32(beta_2))
    if not (0 <= max(*rounded, beta_1, beta_2) < 1):
        return 0.0
    exact_and_rounded = ((correction(beta_1, beta_2, t), correction(*rounded, t)) for t in range(1, STEPS + 1))
    return max(abs(inexact / exact - 1) for exact, inexact in exact_and_rounded)


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


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
      for backend in TRAINING_BACKENDS),
)
# fmt: on
