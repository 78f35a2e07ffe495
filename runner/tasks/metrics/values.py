"""The values of one metric, made one. Standard library only: it runs beside the patterns, in a process of its own.

Promise: memory does not grow with the log, except for order statistics, which keep at most `MOST_VALUES` values.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

MOST_VALUES = 2_000_000
FOLD_AT = 1 << 16

Result = tuple[float | None, str | None]
SHARES = {"median": 0.5, "p50": 0.5, "p90": 0.9, "p99": 0.99}


class Values:
    """Takes the values of a metric as they come; the first `discard` of them count for nothing."""

    def __init__(self, compute: str, discard: int = 0, workers: int = 1) -> None:
        """Take how values become one, by the word of the matrix, and among how many workers a total is shared."""
        self._compute, self._discard, self._workers = compute, discard, workers
        self._held = array("d")
        self._sums: list[float] = []
        self._first = self._last = self._least = self._most = math.nan
        self._folded = 0
        self._strange = 0

    @property
    def count(self) -> int:
        """Return how many values count."""
        return self._folded + len(self._held)

    def add(self, value: float) -> None:
        """Take the next value."""
        if self._discard:
            self._discard -= 1
            return
        if not self.count:
            self._first = value
        self._last = value
        self._strange += not math.isfinite(value)
        self._held.append(value)
        if len(self._held) >= FOLD_AT and self._compute not in SHARES:
            self._fold()

    @property
    def full(self) -> bool:
        """Return whether no more values can be kept."""
        return len(self._held) >= MOST_VALUES

    def result(self) -> Result:
        """Return the one value, or None and why."""
        if not self.count:
            return None, "no_match: nothing in the output matches"
        ends = {"first": self._first, "last": self._last}
        if self._compute in ends:
            value = ends[self._compute]
            return (value, None) if math.isfinite(value) else (None, f"not_finite: its {self._compute} is {value}")
        if self._strange:
            return None, f"not_finite: {self._strange} of {self.count} values are nan or infinite"
        value = self._made()
        return (value, None) if math.isfinite(value) else (None, "not_finite: the values are too large to be summed")

    def _made(self) -> float:
        if self._compute in SHARES:
            return quantile(sorted(self._held), SHARES[self._compute])
        self._fold()
        made: dict[str, Callable[[], float]] = {
            "min": lambda: self._least,
            "max": lambda: self._most,
            "total": lambda: _sum(self._sums) / self._workers,
            "average": lambda: _sum(self._sums) / self._folded,
            "average_aggregate": lambda: _sum(self._sums) / self._folded * self._workers,
        }
        return made[self._compute]()

    def _fold(self) -> None:
        if not self._held:
            return
        self._sums = [_sum([*self._sums, *self._held])]
        self._least = min(self._held) if math.isnan(self._least) else min(self._least, *self._held)
        self._most = max(self._held) if math.isnan(self._most) else max(self._most, *self._held)
        self._folded += len(self._held)
        self._held = array("d")


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which this share of the sorted values lies, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _sum(values: list[float]) -> float:
    """Return the sum, correctly rounded; nan where it is not one."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
