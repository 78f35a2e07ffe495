"""Counts of base against new: what a step calls, compiles and holds, where time is too noisy to say. Pure.

A count of events is certain where all processes of a side agree, and both sides have at least two. Then a difference of
one call is one of the code, up to a count that takes either of two values by chance: with three processes of each side
both agree, and differ, once in 32 comparisons. Where processes of one side differ, the count is not deterministic, and
no difference is claimed.

Memory and instructions are amounts, which no two processes repeat to the last byte: they are equal within a tolerance,
or about so many times as large, and never certain.

Limit: counts prove counts. Faster or slower is said by time alone: work that moves from Python into C lowers the
Python calls and may leave the time as it is, and one C call may do more than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from keras_matrix.records.instruments.work_done import CellCounts, Counts, StepCounts
from keras_matrix.records.text import bytes_text, number, percent_change, ratio_text

LEAST_PROCESSES = 2
TIMES_FROM = 1.5  # below this ratio, or its inverse, a change is said in percent
FIRST, LATER = "first step", "step"


class CountOutcome(StrEnum):
    """How a count of new compares with that of base."""

    EQUAL = "equal"
    NEAR = "equal within its tolerance"
    MORE = "more"
    FEWER = "fewer"
    VARYING = "not deterministic"


@dataclass(frozen=True, slots=True)
class CountKind:
    """A count of a step: its field of `StepCounts`, its name, and what it cannot see.

    An amount has a `tolerance`, the share by which processes of the same code differ; 0.0 for a count of events.
    """

    field: str
    name: str
    blind: str
    is_bytes: bool = False
    tolerance: float = 0.0

    def text(self, value: float) -> str:
        """Return a value as text."""
        if self.is_bytes:
            return bytes_text(value)
        return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


KINDS = (
    CountKind("python_calls", "Python calls", "work in C"),
    CountKind("c_calls", "C calls", "what a C function does"),
    CountKind("python_peak_bytes", "Python memory", "tensors", is_bytes=True, tolerance=0.05),
    CountKind("programs", "programs compiled", "their size"),
    CountKind("graph_breaks", "graph breaks", "the size of graphs"),
    CountKind("instructions", "instructions", "waiting, and other threads", tolerance=0.02),
)


@dataclass(frozen=True, slots=True)
class CountChange:
    """One count of a first or later step: its values in the processes of both sides, never empty."""

    step: str
    kind: CountKind
    base: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """The mean of new over that of base; None for a base of 0."""
        return fmean(self.new) / fmean(self.base) if any(self.base) else None

    @property
    def outcome(self) -> CountOutcome:
        """How they compare; one process alone does not show that a count is deterministic."""
        tolerance, sides = self.kind.tolerance, (self.base, self.new)
        if any(len(values) < LEAST_PROCESSES or not _agree(values, tolerance) for values in sides):
            return CountOutcome.VARYING
        if _agree((*self.base, *self.new), 0.0):
            return CountOutcome.EQUAL
        if _agree((*self.base, *self.new), tolerance):
            return CountOutcome.NEAR
        return CountOutcome.MORE if fmean(self.new) > fmean(self.base) else CountOutcome.FEWER

    @property
    def is_certain(self) -> bool:
        """Whether the sides certainly differ."""
        return self.outcome in (CountOutcome.MORE, CountOutcome.FEWER) and not self.kind.tolerance

    @property
    def text(self) -> str:
        """Both values, or the one that they share, for a table."""
        outcome, sides = self.outcome, (self.base, self.new)
        if outcome is CountOutcome.VARYING:
            base, new = (self._range(values) for values in sides)
            return f"{base if base == new else f'{base} to {new}'}, {outcome}"
        about = "about " if self.kind.tolerance else ""
        if outcome in (CountOutcome.EQUAL, CountOutcome.NEAR):
            return f"{about}{self.kind.text(fmean((*self.base, *self.new)))}"
        values_text = f"{about}{' to '.join(self.kind.text(fmean(values)) for values in sides)}"
        return f"{values_text}, {self._ratio_text(self.ratio)}" if self.ratio else values_text

    @property
    def said(self) -> str | None:
        """The sentence on a certain difference; None if there is none."""
        if not self.is_certain:
            return None
        values = f"{self._range(self.base)} to {self._range(self.new)}"
        if not self.ratio:
            return f"{self.kind.name} of a {self.step}: {values}: certain"
        if 1 / TIMES_FROM < self.ratio < TIMES_FROM:
            return f"{percent_change(self.ratio)} {self.kind.name} of a {self.step} ({values}): certain"
        return f"{number(self.ratio)} times the {self.kind.name} of a {self.step} ({values}): certain"

    def _range(self, values: tuple[float, ...]) -> str:
        low, high = self.kind.text(min(values)), self.kind.text(max(values))
        return low if low == high else f"{low}..{high}"

    def _ratio_text(self, ratio: float) -> str:
        return percent_change(ratio) if 1 / TIMES_FROM < ratio < TIMES_FROM else ratio_text(ratio)


def _agree(values: Sequence[float], tolerance: float) -> bool:
    """Return whether the largest value exceeds the smallest by at most this share."""
    return max(values) <= min(values) * (1 + tolerance)


def count_changes(base: CellCounts, new: CellCounts) -> tuple[CountChange, ...]:
    """Return the counts that both sides have, of the first step and of a later one; none if they were counted apart."""
    if not (base.processes and new.processes) or uncomparable(base, new):
        return ()
    return tuple(_changes(base.processes, new.processes))


def _changes(base: list[Counts], new: list[Counts]) -> Iterator[CountChange]:
    for step, field in ((FIRST, "first"), (LATER, "later")):
        for kind in KINDS:
            sides = [[_value(getattr(process, field), kind) for process in processes] for processes in (base, new)]
            if all(value is not None for values in sides for value in values):
                before, after = (tuple(value for value in values if value is not None) for values in sides)
                yield CountChange(step, kind, before, after)


def _value(counts: StepCounts, kind: CountKind) -> float | None:
    value: float | None = getattr(counts, kind.field)
    return None if value is None else float(value)


def uncomparable(base: CellCounts, new: CellCounts) -> str | None:
    """Return why the counts of two sides cannot be compared, None if they can."""
    ways = [
        {f"Python {'.'.join(process.python.split('.')[:2])}, {process.method}" for process in side.processes}
        for side in (base, new)
    ]
    if ways[0] == ways[1] or not all(ways):
        return None
    return f"counted differently: {', '.join(sorted(ways[0]))} in base, {', '.join(sorted(ways[1]))} in new"


def blindness(changes: list[CountChange]) -> str:
    """Return what the counts cannot show."""
    kinds = [kind for kind in KINDS if any(change.kind == kind for change in changes)]
    blind_spots = "; ".join(f"in {kind.name} {kind.blind}" for kind in kinds)
    return f"counts prove counts; faster or slower is said by time alone. Not seen: {blind_spots}"
