"""The time left of a measurement, from estimates and from what has ended, and the texts of its repeats.

The first repeat of a comparison costs more than the others: it calibrates the steps of an epoch and starts from cold
caches. So the time of a comparison's repeats is that of its own later ones; before there are any, that of its first
one, times what later repeats of other comparisons took of their first. A comparison that was not measured yet has its
estimate, times how far the estimates of the others were off.

While something runs longer than expected, the estimate of all that is left grows with it, so that it never says that
nothing is left before the end.

An event takes the same time for any number of comparisons.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.comparison import primary_metric
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, figure_of
from keras_matrix.analysis.comparison.titles import titles_of, work_labels
from keras_matrix.records.instruments.stall_arms import arm_of
from keras_matrix.records.schema import MEASURED, Record, Status
from keras_matrix.records.text import amount, printable
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import work
from keras_matrix.runner.plan.plan import PlannedRepeat, comparison_of

# What has run for longer than expected is expected to take this share of its time so far in addition.
OVERRUN_SHARE = 0.25
# The least that is shown before the end: `0 s left` says that it is over.
LEAST_S = 1.0
REASON_CHARACTERS = 200
SYMBOLS = {Status.OK: "ok", Status.UNSTABLE: "unstable"}


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

    def left_s(self, learned: _Parts) -> float:
        """Return the time left, by the ratios that were `learned` from all comparisons."""
        of_first = learned.later_per_first / learned.ratios if learned.ratios else 1.0
        of_estimate = learned.first_s / learned.first_estimate_s if learned.first_estimate_s else 1.0
        estimated_s = self.estimated_first_s + of_first * self.estimated_later_s
        return self.own_s + of_first * self.like_first_s + of_estimate * estimated_s


@dataclass(slots=True)
class _Comparison:
    """A comparison: the estimate of one repeat of all its cells, what has not ended, and the times of what has."""

    estimate_s: float = 0.0
    cells: set[tuple[str, str]] = field(default_factory=set)
    pending: dict[int, int] = field(default_factory=dict)  # by repeat, how many cells have not ended it
    taken_s: dict[int, float] = field(default_factory=dict)  # by repeat, in the order of their ends

    def parts(self, repeats: float | None = None) -> _Parts:
        """Return what this comparison adds, by default with its pending `repeats`.

        The cells of a repeat are published together: when one of them has been measured, the others take no time.
        """
        pending = sum(count for repeat, count in self.pending.items() if repeat not in self.taken_s)
        repeats_left = pending / len(self.cells) if repeats is None else repeats
        times = list(self.taken_s.values())
        if not times:
            first_repeat_s = min(repeats_left, 1.0) * self.estimate_s
            return _Parts(
                estimated_first_s=first_repeat_s, estimated_later_s=repeats_left * self.estimate_s - first_repeat_s
            )
        first_s = times[0]
        if len(times) == 1 or not first_s:
            return _Parts(like_first_s=repeats_left * first_s, first_s=first_s, first_estimate_s=self.estimate_s)
        later_s = statistics.fmean(times[1:])
        return _Parts(
            own_s=repeats_left * later_s,
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
        self._pending = len(repeats)
        self._running: dict[Hashable, float] = {}  # comparisons, by when they began
        self._unplanned: set[Hashable] = set()  # those of them whose repeat is measured again, or was added
        self._ended: dict[tuple[str, str, int], bool] = {}  # whether a repeat that has ended was measured
        self._comparisons: dict[Hashable, _Comparison] = {}
        for planned in repeats:
            comparison = self._of(planned)
            comparison.pending[planned.repeat] = comparison.pending.get(planned.repeat, 0) + 1
            if (cell := (planned.cell.cell_id, planned.arm)) not in comparison.cells:
                comparison.cells.add(cell)
                comparison.estimate_s += estimates_s.get(planned.cell.cell_id, 0.0)
        self._sums = _Parts()
        for comparison in self._comparisons.values():
            self._sums = self._sums.replaced(_Parts(), comparison.parts())

    def _of(self, planned: PlannedRepeat) -> _Comparison:
        return self._comparisons.setdefault(comparison_of(planned.cell), _Comparison())

    def runs(self, cell: Cell) -> None:
        """Note that a cell's comparison runs: since the last event, or from now on if others run."""
        self._running.setdefault(comparison_of(cell), self._clock() if self._running else self._last_s)

    def begun(self, planned: PlannedRepeat) -> None:
        """Note that a repeat runs; one that is measured again, or was added to the plan, takes further time."""
        self.runs(planned.cell)
        if not self._of(planned).pending.get(planned.repeat):
            self._unplanned.add(comparison_of(planned.cell))

    def ended(self, planned: PlannedRepeat, status: Status) -> bool:
        """Count the end of an attempt; return whether its repeat was measured for the first time."""
        if status is Status.INFRA:
            self.failed(planned)
            return False
        return self.done(planned)

    def done(self, planned: PlannedRepeat) -> bool:
        """Count a repeat as done; return False if it was already counted and has been measured again."""
        comparison, now_s = self._of(planned), self._clock()
        comparison.cells.add((planned.cell.cell_id, planned.arm))  # of a repeat that was not planned
        parts_before = comparison.parts()
        comparison.taken_s[planned.repeat] = comparison.taken_s.get(planned.repeat, 0.0) + now_s - self._last_s
        self._last_s = now_s
        is_first = self._expect_no_more(comparison, planned, is_measured=True)
        self._measured += is_first
        self._sums = self._sums.replaced(parts_before, comparison.parts())
        return is_first

    def failed(self, planned: PlannedRepeat) -> None:
        """Expect nothing more of a repeat that infrastructure has failed, such as a missing backend."""
        comparison = self._of(planned)
        comparison.cells.add((planned.cell.cell_id, planned.arm))
        parts_before = comparison.parts()
        self._expect_no_more(comparison, planned, is_measured=False)
        self._sums = self._sums.replaced(parts_before, comparison.parts())

    def _expect_no_more(self, comparison: _Comparison, planned: PlannedRepeat, *, is_measured: bool) -> bool:
        """Count a repeat as ended; return whether it was not measured before."""
        key = planned.key
        if key not in self._ended and planned.repeat in comparison.pending:
            comparison.pending[planned.repeat] -= 1
            self._pending -= 1
        if is_measured or not comparison.pending.get(planned.repeat):
            self._running.pop(comparison_of(planned.cell), None)
            self._unplanned.discard(comparison_of(planned.cell))
        was_measured = self._ended.get(key, False)
        self._ended[key] = was_measured or is_measured
        return not was_measured

    def _expected_s(self, name: Hashable) -> float:
        """Return the expected time of one repeat of a comparison."""
        return self._comparisons.setdefault(name, _Comparison()).parts(1.0).left_s(self._sums)

    def seconds(self, machine_count: int = 1) -> float:
        """Return the estimated seconds left; `machine_count` measure at once, until the first repeat has ended.

        It is 0 at the end only. If something has run for longer than expected, all that is left is expected to take
        longer in the same ratio.
        """
        if not self._pending and not self._running:
            return 0.0
        left_s = self._sums.left_s(self._sums) + sum(map(self._expected_s, self._unplanned))
        left_s = left_s if self._measured else left_s / machine_count
        now_s = self._clock()
        times_s = [(now_s - begun_s, self._expected_s(name)) for name, begun_s in self._running.items()]
        times_s = times_s or [(now_s - self._last_s, left_s)]  # nothing has begun: the backends are imported
        overrun = 1 + OVERRUN_SHARE
        growth = max([1.0, *(overrun * taken_s / expected_s for taken_s, expected_s in times_s if expected_s)])
        longest_s = max(taken_s for taken_s, _ in times_s)
        return max(growth * left_s - (now_s - self._last_s), OVERRUN_SHARE * longest_s, LEAST_S)


class OutcomeText:
    """Short texts of how attempts ended. A reason shared by many, such as a missing image, is printed in full once.

    `printed` are the problems that the preflight has printed in full: of these only the name is repeated.
    """

    def __init__(self, printed: Collection[str] = ()) -> None:
        self._printed = printed
        self._reasons: set[str] = set()

    def is_known(self, record: Record) -> bool:
        """Return whether an attempt could not be started for a reason that was printed before, such as no backend."""
        return record.status is Status.INFRA and record.reason in self._printed

    def result(self, record: Record) -> str:
        """Return how an attempt ended."""
        reason = record.reason or ""
        if reason in self._printed:
            return f"{record.status}: {reason.partition(':')[0]}"
        if record.status is not Status.INFRA or reason not in self._reasons:
            self._reasons.add(reason)
            return result(record)
        return f"{record.status}: {reason.partition(':')[0]}, as before"


class CellNames:
    """Short names of cells for progress, with the settings that distinguish cells of one short name."""

    def __init__(self, repeats: Sequence[PlannedRepeat]) -> None:
        self._details = distinguishing(repeats, _name)

    def of(self, cell: Cell) -> str:
        """Return the name of a cell: workload, phase, batch size, arm and change; the plan lists all settings."""
        return printable(_name(cell, self._details.get(cell.cell_id, "")), " ")

    def comparison(self, cell: Cell) -> str:
        """Return the name of a cell's comparison: that of the cell, without its arm and backend."""
        return printable(_comparison_name(cell, self._details.get(cell.cell_id, "")), " ")

    def label(self, planned: PlannedRepeat) -> str:
        """Return the name of a repeat: its cell, its arm, its number."""
        return f"{self.of(planned.cell)} {planned.arm} #{planned.repeat}".replace("  ", " ")


def _name(cell: Cell, details: str = "") -> str:
    if cell.task is not None:
        return f"{work(cell.settings)}{details} {cell.settings.backend}"
    arm_text = f" {arm_of(cell.settings)}" if cell.together else ""
    arm_text += f" ({cell.change})" if cell.change else ""
    return f"{_comparison_name(cell, arm_text + details)} on {cell.settings.backend}"


def _comparison_name(cell: Cell, details: str) -> str:
    if cell.task is not None:
        return f"{work(cell.settings)}{details}"
    phase_text = "" if cell.settings.phase == "fit" else f" {cell.settings.phase}"
    batch_text = "" if cell.settings.script else f" b{cell.settings.batch_size}"  # a program has its own
    return f"{work(cell.settings)}{phase_text}{batch_text}{details}"


def distinguishing(repeats: Sequence[PlannedRepeat], name: Callable[[Cell], str]) -> dict[str, str]:
    """Return by cell_id, as text that begins with a blank, the settings that differ between cells of one name.

    A cell whose name no other one has is left out.
    """
    alike: dict[str, dict[str, Cell]] = {}
    for planned in repeats:
        alike.setdefault(name(planned.cell), {})[planned.cell.cell_id] = planned.cell
    return {cell_id: text for cells in alike.values() for cell_id, text in _differing(cells).items()}


def _differing(cells: Mapping[str, Cell]) -> dict[str, str]:
    if len(cells) < 2:
        return {}
    cell_titles = titles_of([("", work_labels(cell.settings)) for cell in cells.values()], {})
    return {cell_id: str(title) for cell_id, title in zip(cells, cell_titles, strict=True)}


def result(record: Record) -> str:
    """Return how an attempt ended, in half a line."""
    if record.status in MEASURED:
        warnings_text = f", {len(record.warnings)} warning{'s'[: len(record.warnings) > 1]}" if record.warnings else ""
        disturbed_text = ", disturbed by others" if record.surroundings.disturbed else ""
        return f"{SYMBOLS[record.status]}, {attempt_figure(record)}{warnings_text}{disturbed_text}"
    reason = printable(record.reason or "")
    reason_text = reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 3]}..."
    return f"{record.status}: {reason_text}"


def attempt_figure(record: Record) -> str:
    """Return one attempt's figure for the progress line."""
    figure = figure_of([record])
    value = record.times.step_time_s if record.task is None else primary_metric.primary_value([record])
    return f"{amount(value, figure.unit)} " + ("a step" if figure == STEP_TIME else figure.name)
