"""Reduces the values of a metric to one. Standard library only, since it runs in the matching process.

Promise: memory does not grow with the log, except for order statistics, which store at most `MOST_VALUES` values.
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
    """Collects the values of a metric; the first `discard` of them are ignored."""

    def __init__(self, compute: str, discard: int = 0, workers: int = 1) -> None:
        """Take the name of the reduction from the matrix, and the number of workers that share a total."""
        self._compute, self._discard, self._workers = compute, discard, workers
        self._pending = array("d")
        self._sums: list[float] = []
        self._first = self._last = self._smallest = self._largest = math.nan
        self._folded = 0
        self._not_finite = 0

    @property
    def count(self) -> int:
        """The number of values that count."""
        return self._folded + len(self._pending)

    def add(self, value: float) -> None:
        """Add the next value."""
        if self._discard:
            self._discard -= 1
            return
        if not self.count:
            self._first = value
        self._last = value
        self._not_finite += not math.isfinite(value)
        self._pending.append(value)
        if len(self._pending) >= FOLD_AT and self._compute not in SHARES:
            self._fold()

    @property
    def full(self) -> bool:
        """Whether no more values can be stored."""
        return len(self._pending) >= MOST_VALUES

    def result(self) -> Result:
        """Return the reduced value, or None and the reason."""
        if not self.count:
            return None, "no_match: no line of the output matches"
        ends = {"first": self._first, "last": self._last}
        if self._compute in ends:
            value = ends[self._compute]
            return (value, None) if math.isfinite(value) else (None, f"not_finite: its {self._compute} is {value}")
        if self._not_finite:
            return None, f"not_finite: {self._not_finite} of {self.count} values are nan or infinite"
        value = self._reduced()
        return (value, None) if math.isfinite(value) else (None, "not_finite: the values are too large to be summed")

    def _reduced(self) -> float:
        if self._compute in SHARES:
            return quantile(sorted(self._pending), SHARES[self._compute])
        self._fold()
        reductions: dict[str, Callable[[], float]] = {
            "min": lambda: self._smallest,
            "max": lambda: self._largest,
            "total": lambda: _sum(self._sums) / self._workers,
            "average": lambda: _sum(self._sums) / self._folded,
            "average_aggregate": lambda: _sum(self._sums) / self._folded * self._workers,
        }
        return reductions[self._compute]()

    def _fold(self) -> None:
        if not self._pending:
            return
        self._sums = [_sum([*self._sums, *self._pending])]
        self._smallest = min(self._pending) if math.isnan(self._smallest) else min(self._smallest, *self._pending)
        self._largest = max(self._pending) if math.isnan(self._largest) else max(self._largest, *self._pending)
        self._folded += len(self._pending)
        self._pending = array("d")


def quantile(ordered: list[float], share: float) -> float:
    """Return the quantile of the sorted values, interpolated linearly between neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _sum(values: list[float]) -> float:
    """Return the correctly rounded sum, or nan if it is not finite."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan
