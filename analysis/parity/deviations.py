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

Explanations of figures beyond their limits are in `analysis.parity.explanations`; `runner.checks.parity` runs the
processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import canonical
from keras_matrix.records.instruments.parity import Deviation, Pair, ParityFinding, ParityOutput, ParityRecord, Sketch
from keras_matrix.records.settings import Scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Appended to a comparison that is shown with figures of another device.
ON_A_CPU = ", compared on a CPU"
# By precision and figure: the largest deviation that counts as agreement.
LIMITS: Mapping[str, Mapping[str, float]] = {
    "float64": {"loss": 1e-10, "gradient_norm": 1e-8, "gradient": 1e-8, "update": 1e-6, "losses": 1e-6},
    "float32": {"loss": 1e-5, "gradient_norm": 1e-4, "gradient": 1e-2, "update": 5e-2, "losses": 1e-3},
}
RESOLUTION = {"float64": 2.0**-52, "float32": 2.0**-23}
ZERO = {"float64": 1e-12, "float32": 1e-6}
# Among 15,000 compared weights, no difference beyond this is expected by chance.
INITIAL_LIMIT = 6.0
SKETCH_LIMIT = {"float64": 1e-9, "float32": 1e-3}
WORST_WEIGHT = {"gradient": "gradient_at", "update": "update_at"}


@dataclass(frozen=True, slots=True)
class ParityProcess:
    """One process's output and its arrays: `arrays("gradient", i)` is that of weight i. Read one at a time."""

    backend: str
    trace: ParityOutput
    arrays: Callable[[str, int], NDArray[Any]]


def pairs(backends: Iterable[str]) -> list[tuple[str, str]]:
    """Return every pair of backends, in their usual order."""
    return list(combinations(sorted(backends, key=BACKENDS.index), 2))


def zeros(processes: Sequence[ParityProcess], precision: str, kind: str) -> frozenset[int]:
    """Return the weights whose `kind`, gradient or update, is zero except for rounding in these processes."""
    norms = []
    for process in processes:
        found = {i: _norm(process.arrays(kind, i)) for i in _of_kind(process.trace, kind)}
        total = sum(norm**2 for norm in found.values()) ** 0.5 or 1.0
        norms.append({i: norm / total for i, norm in found.items()})
    return frozenset(
        i
        for i in norms[0]
        if min(one[i] for one in norms) <= ZERO[precision] and max(one[i] for one in norms) <= ZERO["float32"]
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
    compared = [i for i in trainable if i not in zero.gradient]
    gradient, gradient_at = _worst(compared, lambda i: _apart(a.arrays("gradient", i), b.arrays("gradient", i), 0.0))
    update, update_at = worst_update(a, b, precision, zero.update | zero.gradient)
    norms = [sum(_norm(one.arrays("gradient", i)) ** 2 for i in trainable) ** 0.5 for one in (a, b)]
    return Deviation(
        loss=_relative(a.trace.losses[0], b.trace.losses[0]),
        gradient_norm=_relative(*norms),
        gradient=gradient,
        gradient_at=None if gradient_at is None else weights[gradient_at].path,
        update=update,
        update_at=update_at,
        losses=worst_loss(a.trace.losses, b.trace.losses),
    )


def worst_update(
    a: ParityProcess, b: ParityProcess, precision: str, zero: frozenset[int]
) -> tuple[float | None, str | None]:
    """Return the deviation of the update of the worst weight and its path, without the weights in `zero`."""
    moving = [i for i in _of_kind(a.trace, "update") if i not in zero]
    update, at = _worst(moving, lambda i: _updates_apart(a, b, precision, i))
    return update, None if at is None else a.trace.weights[at].path


def unlike_updates(a: ParityProcess, b: ParityProcess, precision: str, limit: float) -> frozenset[int]:
    """Return the weights whose updates deviate by more than a limit."""
    apart = {i: _updates_apart(a, b, precision, i) for i in _of_kind(a.trace, "update")}
    return frozenset(i for i, value in apart.items() if value is None or value > limit)


def _updates_apart(a: ParityProcess, b: ParityProcess, precision: str, i: int) -> float | None:
    unresolved = RESOLUTION[precision] * (a.trace.weights[i].norm or 0.0)
    return _apart(a.arrays("update", i), b.arrays("update", i), unresolved)


def initializer_findings(precision: str, a: ParityOutput, b: ParityOutput) -> list[ParityFinding]:
    """Return a finding if two backends draw a weight's initial values from different distributions.

    Their numbers differ: mean and spread are compared, in standard errors; those of constants exactly.
    """

    def unlike(i: int) -> float | None:
        one, other = a.weights[i].initial, b.weights[i].initial
        if one is None or other is None:
            return 0.0
        return _standard_errors(one, other, math.prod(a.weights[i].shape))

    worst, at = _worst(range(min(len(a.weights), len(b.weights))), unlike)
    if worst is not None and worst <= INITIAL_LIMIT:
        return []
    return [ParityFinding(precision, "initial", worst, INITIAL_LIMIT, None if at is None else a.weights[at].path)]


def _standard_errors(a: Sequence[float], b: Sequence[float], size: int) -> float | None:
    """Return how far apart two draws' means or standard deviations are, at most; None for unequal constants."""
    spread = max(a[1], b[1])
    if min(a[1], b[1]) == 0.0:
        return 0.0 if list(a) == list(b) else None  # beyond any limit
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / (spread * math.sqrt(2 / size))


def worst_loss(a: Sequence[float | None], b: Sequence[float | None]) -> float | None:
    """Return the largest relative deviation over the common steps, None if a loss was not finite."""
    apart = [_relative(x, y) for x, y in zip(a, b, strict=False)]
    return None if any(value is None for value in apart) else max(filter(None, apart), default=0.0)


def findings(precision: str, observed: Deviation) -> list[ParityFinding]:
    """Return the figures beyond their limit. A figure that could not be computed is beyond any limit."""
    found = []
    for figure, limit in LIMITS[precision].items():
        value = getattr(observed, figure)
        if value is None or value > limit:
            at = getattr(observed, WORST_WEIGHT[figure]) if figure in WORST_WEIGHT else None
            found.append(ParityFinding(precision, figure, value, limit, at))
    return found


def first_differing_layer(a: Sequence[Sketch], b: Sequence[Sketch], precision: str) -> str | None:
    """Return the first layer whose output differs between two forward passes, in the order of `a`."""
    others: dict[str, list[Sketch]] = {}
    for sketch in b:
        others.setdefault(plain(sketch.layer), []).append(sketch)
    for sketch in a:
        # A layer within a backend's compiled loop is recorded on one side only: its loop's output is on both.
        waiting = others.get(plain(sketch.layer))
        if waiting and _sketches_differ(sketch, waiting.pop(0), SKETCH_LIMIT[precision]):
            return sketch.layer
    return None


def last_differing_weight(a: ParityProcess, b: ParityProcess, precision: str, zero: Zeros = NO_ZEROS) -> str | None:
    """Return the weight nearest the output whose gradient differs: an error in it spreads towards the input."""
    for i in reversed(_of_kind(a.trace, "gradient")):
        if i in zero.gradient:
            continue
        apart = _apart(a.arrays("gradient", i), b.arrays("gradient", i), 0.0)
        if apart is None or apart > LIMITS[precision]["gradient"]:
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
        moved = pair.corrected.get(precision, pair.deviations[precision]).update_at
        learnt = any(weight.trainable and weight.path == moved for weight in processes[0].trace.weights)
        what = "the optimiser's step on" if learnt else "the statistic"
        return f"{what} {moved}; every gradient agrees"
    return "the training after step 1; its gradients agree"


def plain(name: str) -> str:
    """Return a name without the numbers that Keras adds to make it unique."""
    return "/".join(part.rstrip("0123456789").rstrip("_") or part for part in name.split("/"))


def latest_comparison(
    records: Sequence[ParityRecord],
    workload: str,
    params: Mapping[str, Scalar] | None = None,
    versions: Mapping[str, Mapping[str, str]] | None = None,
) -> StoredComparison | None:
    """Return the newest comparison of a workload, if possible of these versions, and then of these parameters.

    `versions` by backend are those of the figures it is shown with; backends whose versions differ are `stale`. None if
    the workload was never compared.
    """

    def stale(record: ParityRecord) -> tuple[str, ...]:
        return tuple(
            backend
            for backend, found in (versions or {}).items()
            if any(record.versions.get(backend, {}).get(name) != found.get(name) for name in ("keras", backend))
        )

    def suits(record: ParityRecord) -> tuple[bool, bool, str]:
        return not stale(record), canonical(record.params) == own, record.started_at

    own = None if params is None else canonical(dict(params))
    best = max((record for record in records if record.workload == workload), key=suits, default=None)
    return None if best is None else StoredComparison(best, suits(best)[1], stale(best))


@dataclass(frozen=True, slots=True)
class StoredComparison:
    """A stored comparison; `same_params`: it is of exactly the requested parameters; `stale` are the backends whose
    version has changed since."""

    record: ParityRecord
    same_params: bool
    stale: tuple[str, ...]


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
    worst, at = 0.0, None
    for i in indices:
        value = measure(i)
        if value is None:
            return None, i
        if value > worst:
            worst, at = value, i
    return worst, at


def _sketches_differ(a: Sketch, b: Sketch, limit: float) -> bool:
    if a.size != b.size:
        return True
    scale = max(a.norm, b.norm)
    apart = max(abs(a.norm - b.norm), *(abs(x - y) for x, y in zip(a.projections, b.projections, strict=True)))
    return scale > 0 and apart > limit * scale
