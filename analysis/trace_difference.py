"""The operations whose time per step differs most between two traces of one cell. Pure.

Not known: why an operation takes longer, and what the profiler itself costs in either trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.records.traces.table import TraceSummary

MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class OperationShift:
    """An operation's own time per step in both traces; `name` is None for the time that belongs to no operation."""

    name: str | None
    before_s: float
    after_s: float

    @property
    def shift_s(self) -> float:
        """Return by how much a step spends more time in it."""
        return self.after_s - self.before_s


def largest_shifts(before: TraceSummary, after: TraceSummary, count: int = MOST_SHOWN) -> list[OperationShift]:
    """Return the operations that differ most, the largest difference first; empty if a trace has no steps."""
    times = [_per_step(table) for table in (before, after)]
    shifts = [OperationShift(name, *(one.get(name, 0.0) for one in times)) for name in {**times[0], **times[1]}]
    found = sorted((one for one in shifts if one.shift_s), key=lambda one: (-abs(one.shift_s), one.name or ""))
    return found[:count] if all(times) else []


def _per_step(table: TraceSummary) -> dict[str | None, float]:
    return {one.name: one.time_s / table.steps for one in table.by_operation} if table.steps else {}
