"""Removes what the profilers added to two traced steps.

A profiler costs about the same for each event, on the thread that records it (`analysis.whatif.overhead` does the
same for replays). So each operation and each gap of a CPU's threads becomes shorter by the same time, but never
negative, until the step is as long as the same process measured without the profiler. Two sides of one backend that
compile the step alike have the smaller cost of both: what a busier machine added to the trace of one side is not the
profiler's, and stays unexplained. Otherwise the events differ, and so do their costs. What runs on a device is
unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.explain.parts import WORKING, Part, PartKey, StepParts
from keras_matrix.analysis.whatif.overhead import MOST_COST_NS

MOST_COST_S = MOST_COST_NS / 1e9
HALVINGS = 40


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
