"""The time left of a measurement, from the plan's estimates and the times of what has ended.

The first repeat of a comparison costs more than the others: it calibrates the steps of an epoch and starts from cold
caches. So the time of a comparison's repeats is that of its own later ones; before there are any, that of its first
one, times what later repeats of other comparisons took of their first. A comparison that was not measured yet has its
estimate, times how far the estimates of the others were off.

An event takes the same time for any number of comparisons.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.records.schema import Status
from keras_matrix.runner.plan.plan import PlannedRepeat, comparison_of


@dataclass(frozen=True, slots=True)
class _Parts:
    """What comparisons add to the time left, in seconds, by what it is known from; and the ratios learned from them."""

    own_s: float = 0.0  # left, by own later repeats
    like_first_s: float = 0.0  # left if later repeats take as long as the first
    estimated_first_s: float = 0.0  # left for first repeats, by the plan's estimates
    estimated_later_s: float = 0.0
    later_per_first: float = 0.0  # sum of the ratios of later repeats to first ones
    ratios: int = 0
    first_s: float = 0.0  # what first repeats took
    first_estimate_s: float = 0.0  # the plan's estimates of those

    def replaced(self, old: _Parts, new: _Parts) -> _Parts:
        """Return these sums with the parts of one comparison replaced."""
        return _Parts(
            *(getattr(self, name) - getattr(old, name) + getattr(new, name) for name in _Parts.__dataclass_fields__)
        )

    def left_s(self) -> float:
        """Return the time left."""
        of_first = self.later_per_first / self.ratios if self.ratios else 1.0
        of_estimate = self.first_s / self.first_estimate_s if self.first_estimate_s else 1.0
        estimated_s = self.estimated_first_s + of_first * self.estimated_later_s
        return self.own_s + of_first * self.like_first_s + of_estimate * estimated_s


@dataclass(slots=True)
class _Comparison:
    """A comparison: the estimate of one repeat of all its cells, what has not ended, and the times of what has."""

    estimate_s: float = 0.0
    cells: set[tuple[str, str]] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)  # by repeat, how many cells have not ended it
    taken_s: dict[int, float] = field(default_factory=dict)  # by repeat, in the order of their ends

    def parts(self) -> _Parts:
        """Return what this comparison adds; a repeat that some cells have ended counts in part."""
        left = sum(self.pending.values()) / len(self.cells)
        times = [taken_s for repeat, taken_s in self.taken_s.items() if not self.pending.get(repeat)]
        if not times:
            first = min(left, 1.0) * self.estimate_s
            return _Parts(estimated_first_s=first, estimated_later_s=left * self.estimate_s - first)
        first_s = times[0]
        if len(times) == 1 or not first_s:
            return _Parts(like_first_s=left * first_s, first_s=first_s, first_estimate_s=self.estimate_s)
        later_s = statistics.fmean(times[1:])
        return _Parts(
            own_s=left * later_s,
            later_per_first=later_s / first_s,
            ratios=1,
            first_s=first_s,
            first_estimate_s=self.estimate_s,
        )


class TimeLeft:
    """Estimates the time left. Events are given in their order; the clock is monotonic, in seconds."""

    def __init__(
        self,
        estimates_s: Mapping[str, float],
        repeats: Sequence[PlannedRepeat],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock, self._last_s = clock, clock()
        self._measured = 0
        self._ended: dict[tuple[str, str, int], bool] = {}  # whether a repeat that has ended was measured
        self._comparisons: dict[Hashable, _Comparison] = {}
        for planned in repeats:
            one = self._of(planned)
            one.pending[planned.repeat] = one.pending.get(planned.repeat, 0) + 1
            if (cell := (planned.cell.cell_id, planned.arm)) not in one.cells:
                one.cells.add(cell)
                one.estimate_s += estimates_s.get(planned.cell.cell_id, 0.0)
        self._sums = _Parts()
        for one in self._comparisons.values():
            self._sums = self._sums.replaced(_Parts(), one.parts())

    def _of(self, planned: PlannedRepeat) -> _Comparison:
        return self._comparisons.setdefault(comparison_of(planned.cell), _Comparison())

    def ended(self, planned: PlannedRepeat, status: Status) -> bool:
        """Count the end of an attempt; return whether its repeat was measured for the first time."""
        if status is Status.INFRA:
            self.failed(planned)
            return False
        return self.done(planned)

    def done(self, planned: PlannedRepeat) -> bool:
        """Count a repeat as done; return False if it was already counted and has been measured again."""
        one, now_s = self._of(planned), self._clock()
        one.cells.add((planned.cell.cell_id, planned.arm))  # of a repeat that was not planned
        before = one.parts()
        one.taken_s[planned.repeat] = one.taken_s.get(planned.repeat, 0.0) + now_s - self._last_s
        self._last_s = now_s
        first = self._expect_no_more(one, planned, measured=True)
        self._measured += first
        self._sums = self._sums.replaced(before, one.parts())
        return first

    def failed(self, planned: PlannedRepeat) -> None:
        """Expect nothing more of a repeat that infrastructure has failed, such as a missing backend."""
        one = self._of(planned)
        one.cells.add((planned.cell.cell_id, planned.arm))
        before = one.parts()
        self._expect_no_more(one, planned, measured=False)
        self._sums = self._sums.replaced(before, one.parts())

    def _expect_no_more(self, one: _Comparison, planned: PlannedRepeat, *, measured: bool) -> bool:
        """Count a repeat as ended; return whether it was not measured before."""
        key = planned.key
        if key not in self._ended and planned.repeat in one.pending:
            one.pending[planned.repeat] -= 1
        before = self._ended.get(key, False)
        self._ended[key] = before or measured
        return not before

    def seconds(self, machines: int = 1) -> float:
        """Return the estimated seconds left; `machines` measure at the same time, until the first repeat has ended."""
        left_s = self._sums.left_s() if self._measured else self._sums.left_s() / machines
        return max(0.0, left_s - (self._clock() - self._last_s))
