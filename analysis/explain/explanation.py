"""The differences that explain a change of the step time, with their shares, and how much is unexplained.

The change is that of the cells' mean step times, measured without the profiler. Each part of the traced steps is in one
difference at most, and their times are those of a step: so the listed differences, the others and the unexplained rest
add up to the change. Each has the interval that follows from the scatter of the traced steps.

Guarantee: pure; nothing is explained where the interval of the ratio contains 1. Limits: one process of each side is
traced, so that the difference between processes is unexplained; parts of a step that overlap differently than before
change each other's share.

First what the profilers added to the two traced steps is removed (`without_profiler`). A profiler costs about the
same for each event, on the thread that records it (`analysis.whatif.overhead` does the same for replays). So each
operation and each gap of a CPU's threads becomes shorter by the same time, but never negative, until the step is as
long as the same process measured without the profiler. Two sides of one backend that compile the step alike have the
smaller cost of both: what a busier machine added to the trace of one side is not the profiler's, and stays
unexplained. Otherwise the events differ, and so do their costs. What runs on a device is unchanged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.explain.alignment import aligned, half_width_s
from keras_matrix.analysis.explain.facts import Fact
from keras_matrix.analysis.explain.kinds import Claim, ComparedSides, claimed, mode, total_s
from keras_matrix.analysis.explain.parts import WORKING, Part, PartKey, StepParts
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.whatif.overhead import MOST_COST_NS
from keras_matrix.records.schema import Record

SHOWN = 3
LEAST_SHARE = 0.01
LEAST_SLOWER = 0.2
MOST_COST_S = MOST_COST_NS / 1e9
HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its measured records, and of the traced one of them the parts of its steps."""

    records: Sequence[Record]
    traced: Record
    parts: StepParts

    @property
    def step_time_s(self) -> float:
        """The mean step time over its processes."""
        return statistics.geometric_mean(time_s for record in self.records if (time_s := record.times.step_time_s))


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference: seconds of a step on both sides, and its share of the change of the step time.

    `half_width_s` is that of the 95 % interval of its change, from the scatter of the traced steps.
    """

    kind: str
    title: str
    base_s: float
    new_s: float
    change_s: float
    share: float
    half_width_s: float | None
    details: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether it is larger than the scatter of the traced steps."""
        return self.half_width_s is not None and abs(self.change_s) > self.half_width_s


@dataclass(frozen=True, slots=True)
class Explanation:
    """The change of a step time from base to new, and what explains it.

    `differences` are the largest ones, empty if there is `nothing` larger than the noise; `others_s` is the sum of
    `others` further ones. `profiler_costs_s` is what was removed of each operation of base and of new. `ratio` has no
    interval if it is not known.
    """

    base_s: float
    new_s: float
    ratio: Estimate
    nothing: bool
    differences: tuple[Difference, ...] = ()
    others: int = 0
    others_s: float = 0.0
    unexplained_s: float = 0.0
    profiler_costs_s: tuple[float, float] = (0.0, 0.0)
    same_backend: bool = True
    facts: tuple[Fact, ...] = ()
    caveats: tuple[str, ...] = field(default=())

    @property
    def change_s(self) -> float:
        """By how much a step became longer."""
        return self.new_s - self.base_s

    def share(self, time_s: float) -> float:
        """Return the share of a time in the change."""
        return time_s / self.change_s if self.change_s else 0.0


def explain(
    base: Side, new: Side, ratio: Estimate, facts: Sequence[Fact] = (), caveats: Sequence[str] = ()
) -> Explanation:
    """Return what explains the change from base to new; `ratio` is new / base."""
    same = base.traced.settings.backend == new.traced.settings.backend
    nothing = ratio.bounds is not None and not ratio.excludes(1.0)
    base_s, new_s = base.step_time_s, new.step_time_s
    if nothing:
        return Explanation(base_s, new_s, ratio, True, same_backend=same, facts=tuple(facts), caveats=tuple(caveats))
    sides = (base, new)
    parts, costs_s = _without_profiler(base, new, alike=same and mode(base.traced) == mode(new.traced))
    found = aligned(*parts, same_backend=same)
    claims = claimed(ComparedSides(base.traced, new.traced, found.rows))
    change_s = new_s - base_s
    differences = sorted((_difference(*one, change_s) for one in claims), key=lambda one: -abs(one.change_s))
    shown = [one for one in differences if abs(one.share) >= LEAST_SHARE][:SHOWN]
    others = [one for one in differences if one not in shown]
    others_s = sum(one.change_s for one in others)
    renamed = [
        f"layer {now} of new is paired with {then} of base by its position" for now, then in found.renamed.items()
    ]
    return Explanation(
        base_s,
        new_s,
        ratio,
        nothing=False,
        differences=tuple(shown),
        others=len(others),
        others_s=others_s,
        unexplained_s=change_s - others_s - sum(one.change_s for one in shown),
        profiler_costs_s=costs_s,
        same_backend=same,
        facts=tuple(facts),
        caveats=(*caveats, *_slower_traces(sides, parts), *renamed, *_two_backends(base, new, same_backend=same)),
    )


def _without_profiler(base: Side, new: Side, *, alike: bool) -> tuple[list[StepParts], tuple[float, float]]:
    sides = [TracedSide(side.parts, side.traced.times.step_time_s) for side in (base, new)]
    if alike:
        parts, cost_s = without_profiler(sides)
        return parts, (cost_s, cost_s)
    (base_parts,), base_cost_s = without_profiler(sides[:1])
    (new_parts,), new_cost_s = without_profiler(sides[1:])
    return [base_parts, new_parts], (base_cost_s, new_cost_s)


def _slower_traces(sides: Sequence[Side], parts: Sequence[StepParts]) -> list[str]:
    """Return which traced steps took another time than measured, which the profiler's cost does not account for."""
    found = []
    for name, side, own in zip(("base", "new"), sides, parts, strict=True):
        measured_s = side.traced.times.step_time_s
        if measured_s and abs(own.step_time_s / measured_s - 1) > LEAST_SLOWER:
            times = f"{own.step_time_s / measured_s:.2f} times as long as"
            found.append(
                f"the traced steps of {name} took {times} those that the same process measured: the machine was "
                "busier or quieter then"
            )
    return found


def _difference(kind: str, claim: Claim, change_s: float) -> Difference:
    base_s, new_s = sum(row.base_s for row in claim.rows), sum(row.new_s for row in claim.rows)
    own_s = total_s(claim.rows)
    share = own_s / change_s if change_s else 0.0
    return Difference(kind, claim.title, base_s, new_s, own_s, share, half_width_s(claim.rows), claim.details)


def _two_backends(base: Side, new: Side, *, same_backend: bool) -> list[str]:
    if same_backend:
        return []
    names = f"{base.traced.settings.backend} and {new.traced.settings.backend}"
    return [f"{names} have different operations: compared by layer and phase only; what has neither is unexplained"]


@dataclass(frozen=True, slots=True)
class TracedSide:
    """The parts of a traced step, and the step time of the same process without the profiler, None if unknown."""

    parts: StepParts
    measured_s: float | None


def without_profiler(sides: Sequence[TracedSide]) -> tuple[list[StepParts], float]:
    """Return the parts of these sides, whose events are alike, without the profiler's cost, and that of each event."""
    cost_s = min(map(_needed_s, sides))
    return [_cheaper(side.parts, cost_s) if cost_s else side.parts for side in sides], cost_s


def _needed_s(side: TracedSide) -> float:
    """Return the cost of each event that makes a side as long as measured, at most `MOST_COST_S`."""
    added_s = side.parts.step_time_s - side.measured_s if side.measured_s else 0.0
    if added_s <= 0:
        return 0.0
    low_s, high_s = 0.0, MOST_COST_S
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if _removed_s(side.parts, middle_s) >= added_s else (middle_s, high_s)
    return high_s


def _removed_s(parts: StepParts, cost_s: float) -> float:
    return sum(min(part.mean_s, _cost_s(parts, key, part, cost_s)) for key, part in parts.parts.items())


def _cost_s(parts: StepParts, key: PartKey, part: Part, cost_s: float) -> float:
    """Return the cost of a part's events, of which those on a device have none."""
    return cost_s * part.count if parts.device == "cpu" or key.place not in WORKING else 0.0


def _cheaper(parts: StepParts, cost_s: float) -> StepParts:
    return replace(parts, parts={key: _shortened(parts, key, part, cost_s) for key, part in parts.parts.items()})


def _shortened(parts: StepParts, key: PartKey, part: Part, cost_s: float) -> Part:
    mean_s = part.mean_s
    return part.scaled(max(0.0, 1 - _cost_s(parts, key, part, cost_s) / mean_s)) if mean_s > 0 else part
