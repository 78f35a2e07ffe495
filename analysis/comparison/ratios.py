"""The ratios of a row: over blocks at one machine, or over those of several equal machines, and their texts.

A block is at one machine, so that its ratio does not depend on the machine's speed; the machine is a level of the
mean over blocks (`analysis.stats.levels`). Guarantee: pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.machines import MACHINES, noun, short
from keras_matrix.analysis.stats.blocks import MIN_BLOCKS, Estimate, minimum_detectable_effect, of_logs, p_value
from keras_matrix.analysis.stats.levels import DISAGREEMENT_LEVEL, LEAST_DEGREES, levels
from keras_matrix.analysis.stats.sequential import Looks
from keras_matrix.analysis.stats.sessions import BY_SPREAD, NO_INTERVAL
from keras_matrix.analysis.surroundings.disturbance import percent


@dataclass(frozen=True, slots=True)
class MachineRatio:
    """A ratio at one of several machines, by its `host_id`."""

    machine: str
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of the time of a step on `backend` to that on the backend with the lowest time.

    `smallest_difference` is the relative one that these blocks would probably have shown; None below 5 blocks.
    `scatter` is the standard deviation of the blocks' log ratios. `all_data` includes blocks that were disturbed and
    measured again; None without such blocks. `separate`: the two cells are of separate sessions, without common blocks.

    If the blocks were at several machines, `by_machine` has the ratio at each of them, `scatter` is within them, and
    `disagreement` is the p-value of the F test that it is the same at all. If they disagree, or if the interval
    excludes 1 although the backend is not slower at each of them, there is no interval.
    """

    backend: str
    estimate: Estimate
    p_value: float | None = None
    smallest_difference: float | None = None
    all_data: Estimate | None = None
    scatter: float | None = None
    separate: bool = False
    by_machine: tuple[MachineRatio, ...] = ()
    disagreement: float | None = None
    opposed: bool = False

    @property
    def machines_disagree(self) -> bool:
        """Whether the ratio differs between the machines, or says at one of them the opposite of its mean."""
        return self.opposed or (self.disagreement is not None and self.disagreement < DISAGREEMENT_LEVEL)


def ratio_of(backend: str, logs: Mapping[str, Sequence[float]], looks: Looks) -> Ratio:
    """Return the ratio whose logarithm, block by block, is `logs`, by machine; there must be a block."""
    if len(logs) == 1:
        return _at_one(backend, next(iter(logs.values())), looks)
    found = levels(logs)
    assert found is not None
    by_chance, estimate = found.p_value(), found.estimate(looks.confidence(found.count))
    ratio = Ratio(
        backend,
        estimate,
        None if by_chance is None else min(1.0, looks.p_factor * by_chance),
        found.smallest_difference(),
        scatter=found.scatter,
        by_machine=tuple(MachineRatio(name, each) for name, own in logs.items() if (each := of_logs(own))),
        disagreement=found.disagreement(),
        opposed=estimate.excludes(1.0) and any((mean > 0) != (found.centre > 0) for mean in found.means),
    )
    if not ratio.machines_disagree:
        return ratio
    centre = Estimate(ratio.estimate.centre, None, None, ratio.estimate.count)
    return replace(ratio, estimate=centre, p_value=None, smallest_difference=None)


def _at_one(backend: str, logs: Sequence[float], looks: Looks) -> Ratio:
    estimate = of_logs(logs, looks.confidence(len(logs)))
    assert estimate is not None
    scatter = statistics.stdev(logs) if len(logs) > 1 else None
    detectable = None if scatter is None else minimum_detectable_effect(scatter, len(logs))
    by_chance = p_value(logs)
    spent = None if by_chance is None else min(1.0, looks.p_factor * by_chance)
    return Ratio(backend, estimate, spent, detectable, scatter=scatter)


def estimate_over(logs: Mapping[str, Sequence[float]], confidence: float) -> Estimate | None:
    """Return the ratio whose logarithm, block by block, is `logs`, by machine; None for no block."""
    if len(logs) > 1:
        found = levels(logs)
        return found.estimate(confidence) if found else None
    return of_logs(next(iter(logs.values()), ()), confidence)


def open_verdict(lowest: str, ratios: Sequence[Ratio], others: int) -> str:
    """Return the verdict of a row of which no backend is named fastest; `others` are the backends but the lowest."""
    if any(ratio.separate and ratio.estimate.low is None for ratio in ratios):
        return NO_INTERVAL
    if apart := [ratio for ratio in ratios if ratio.machines_disagree]:
        return _disagreement(lowest, apart)
    if without := [ratio for ratio in ratios if ratio.estimate.low is None]:
        return f"not separable: {too_few(without)}"
    if len(ratios) < others:
        return "not separable: some cells have no repeat in common"
    text = ", ".join(ratio_text(ratio) for ratio in ratios if (ratio.estimate.low or 0) <= 1)
    known = [ratio.smallest_difference for ratio in ratios if ratio.smallest_difference is not None]
    shown = f"; a difference of {percent(max(known))} would have shown" if known else ""
    separate = any(ratio.separate for ratio in ratios)
    return f"not separable: {text} against {lowest}{'' if separate else shown}{how(ratios)}"


def _disagreement(lowest: str, ratios: Sequence[Ratio]) -> str:
    """Return the ratio at each machine, of the ratios about which the machines disagree."""
    several = (f"{ratio.backend} {at_each(ratio)}" for ratio in ratios)
    where = noun([one.machine for ratio in ratios for one in ratio.by_machine])
    key, name, one = ("across_nodes", "machine", "machine") if where == MACHINES else ("across_gpus", "gpus", "GPU")
    return (
        f"not separable: the {where} disagree: {lowest} against {'; '.join(several)}; compare at one {one}: "
        f"leave out {key}, or name one with {name}"
    )


def at_each(ratio: Ratio) -> str:
    """Return the ratio at each machine, and the p-value of the test that it is the same at all."""
    found = ", ".join(f"{one.estimate.centre:.2f}x at {short(one.machine)}" for one in ratio.by_machine)
    return f"{found}{_chance(ratio)}"


def _chance(ratio: Ratio) -> str:
    return "" if ratio.disagreement is None else f" (p {ratio.disagreement:.2g})"


def too_few(ratios: Sequence[Ratio]) -> str:
    """Return why there is no interval, and of several machines how many blocks would give one."""
    spread = [ratio for ratio in ratios if ratio.by_machine]
    if not spread:
        return f"fewer than {MIN_BLOCKS} repeats give no interval"
    ratio = max(spread, key=_missing)
    count, missing = len(ratio.by_machine), _missing(ratio)
    where = noun([one.machine for one in ratio.by_machine])
    return (
        f"{ratio.estimate.count} repeats over {count} {where} give no interval: it needs "
        f"{LEAST_DEGREES} more repeats than {where}, {missing} more than there are at these {where}"
    )


def _missing(ratio: Ratio) -> int:
    return LEAST_DEGREES - ratio.estimate.count + len(ratio.by_machine)


def repeats_for_intervals(ratios: Sequence[Ratio]) -> int | None:
    """Return the repeats that would give each of these ratios an interval; None if none lacks one for this reason."""
    few = [r for r in ratios if r.estimate.low is None and not r.separate and not r.machines_disagree]
    return max((max(MIN_BLOCKS, LEAST_DEGREES + len(ratio.by_machine)) for ratio in few), default=None)


def how(ratios: Sequence[Ratio]) -> str:
    """Return what the ratios are from, if not blocks at one machine, as text in brackets with a blank before it."""
    if any(ratio.separate for ratio in ratios):
        return f" ({BY_SPREAD})"
    machines = max(([one.machine for one in ratio.by_machine] for ratio in ratios), key=len, default=[])
    return f" (over {len(machines)} {noun(machines)})" if machines else ""


def bracketed(estimate: Estimate) -> str:
    """Return a ratio with its interval, such as `1.42x [1.30 1.55]`; without an interval only the ratio."""
    return f"{estimate.centre:.2f}x{_ends(estimate)}"


def _ends(estimate: Estimate) -> str:
    return f" [{estimate.low:.2f} {estimate.high:.2f}]" if estimate.bounds else ""


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval and the backend, such as `1.42x jax [1.30 1.55]`."""
    return f"{ratio.estimate.centre:.2f}x {ratio.backend}{_ends(ratio.estimate)}{with_disturbed(ratio)}"


def with_disturbed(ratio: Ratio) -> str:
    """Return the interval that includes the disturbed blocks, in brackets; empty without such blocks."""
    bounds = ratio.all_data.bounds if ratio.all_data else None
    return f" (with disturbed blocks [{bounds[0]:.2f} {bounds[1]:.2f}])" if bounds else ""
