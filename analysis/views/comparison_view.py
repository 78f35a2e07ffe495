"""A comparison of base and new: for each cell the figures of both sides, their ratio, and what would decide it. Pure.

Terminal and Markdown render all of it; the JSON document has the cells, and the page a line for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.comparison.counts import CountChange
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, primary_value
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.comparison.titles import Usual, titles
from keras_matrix.analysis.comparison.versus import ACROSS_UNKNOWN, CellComparison, Versus
from keras_matrix.analysis.history.sessions import LEAST_PROCESSES, LEAST_SESSIONS
from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.analysis.stats.suite import SuiteRatio
from keras_matrix.records.identity import cell_id
from keras_matrix.records.settings import CALLED, CALLS, NATIVE, ON_BATCH

SOONEST = "; to decide soonest, measure both interleaved: --base-env"
ACROSS_ADVICE = (
    f"an interval across sessions needs {LEAST_PROCESSES} processes on each side and {LEAST_SESSIONS} other stored "
    f"sessions of the cell{SOONEST}"
)
ACROSS_WIDE = (
    "the interval across these sessions is too wide to decide; more stored sessions of the cell narrow it, no further "
    f"than sessions differ{SOONEST}"
)


@dataclass(frozen=True, slots=True)
class SideFigures:
    """The figure of a cell in base or in new, and its quantiles over processes; None means not measured."""

    value: float | None
    median: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell in base and new: its title, the figures of both sides, and their comparison.

    `median_ratio` and `p95_ratio` are new / base of the quantiles of a step's time; a command has none.
    """

    title: str
    comparison: CellComparison
    base: SideFigures
    new: SideFigures
    counts: tuple[CountChange, ...] = ()

    @property
    def backend(self) -> str:
        """The backend of the cell."""
        return self.comparison.either.settings.backend

    @property
    def name(self) -> str:
        """The title and the backend."""
        return f"{self.title} on {self.backend}"

    @property
    def is_step(self) -> bool:
        """Whether the figure is the time per step; else it is the metric of a command."""
        return self.comparison.either.figure == STEP_TIME

    @property
    def median_ratio(self) -> float | None:
        """The ratio of the medians over processes."""
        return self._step_ratio(self.base.median, self.new.median)

    @property
    def p95_ratio(self) -> float | None:
        """The ratio of the 95th percentiles over processes."""
        return self._step_ratio(self.base.p95, self.new.p95)

    def _step_ratio(self, before: float | None, after: float | None) -> float | None:
        return after / before if before and after and self.is_step else None

    @property
    def shown_from(self) -> float | None:
        """The smallest change that an interval of this width would have shown; None without an interval."""
        half_width = self.comparison.ratio.half_width if self.comparison.ratio else None
        return None if half_width is None else math.expm1(half_width)

    @property
    def blocks(self) -> list[float]:
        """The figure of new over that of base in each block; empty for two sessions."""
        return [math.exp(log) for log in self.comparison.logs]


@dataclass(frozen=True, slots=True)
class CallRow:
    """Cells that differ in how the model is called alone: their title without it, and the cell of each call."""

    title: str
    backend: str
    changes: Mapping[str, CellChange]


@dataclass(frozen=True, slots=True)
class MeanChange:
    """The geometric mean of the ratios on one backend, or on all of them."""

    backend: str | None
    suite: SuiteRatio


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """All cells and means of a comparison, how many cells have each outcome, and what would decide the undecided ones.

    `threshold` is the slowdown that is tolerated. `by_call` has the cells once more, where a model is called in several
    ways; `calls` are these, in their order. `advice` is empty for one session, whose cells say it themselves.
    """

    versus: Versus
    threshold: float
    cells: tuple[CellChange, ...]
    means: tuple[MeanChange, ...]
    outcomes: Mapping[GateOutcome, int]
    advice: str
    by_call: tuple[CallRow, ...] = ()

    @property
    def calls(self) -> list[str]:
        """How the models of `by_call` are called: native code first, then as Keras calls them."""
        made = {call for row in self.by_call for call in row.changes}
        return sorted(made, key=lambda call: (call != NATIVE, CALLS.index(call)))


def comparison_view(versus: Versus, threshold: float, usual: Usual) -> ComparisonView:
    """Return what is shown of a comparison; a title leaves out settings with these usual values."""
    change_titles = titles([comparison.either.settings for comparison in versus.comparisons], usual)
    changes = tuple(
        CellChange(title, one, _side(one.base), _side(one.new), versus.counts.get(one.cell_id, ()))
        for one, title in zip(versus.comparisons, change_titles, strict=True)
    )
    outcomes = [comparison.outcome for comparison in versus.comparisons]
    return ComparisonView(
        versus,
        threshold,
        changes,
        tuple(_means(versus)),
        {outcome: outcomes.count(outcome) for outcome in GateOutcome if outcome in outcomes},
        _advice(versus),
        tuple(_by_call(changes, usual)),
    )


def _by_call(changes: Sequence[CellChange], usual: Usual) -> Iterator[CallRow]:
    """Yield the cells by what they measure, in their order; what is called in one way only is left out."""
    called: dict[str, dict[str, CellChange]] = {}
    for change in changes:
        settings = change.comparison.either.settings
        if settings.phase in CALLED:
            called.setdefault(cell_id(replace(settings, call=ON_BATCH)), {})[settings.call] = change
    rows = [made for made in called.values() if len(made) > 1]
    plain = [replace(next(iter(made.values())).comparison.either.settings, call=ON_BATCH) for made in rows]
    for title, settings, made in zip(titles(plain, usual), plain, rows, strict=True):
        yield CallRow(title, settings.backend, made)


def _side(cell: CellSummary | None) -> SideFigures:
    if cell is None:
        return SideFigures(None, None, None)
    value = cell.step_time.centre if cell.step_time else primary_value(cell.measured)
    return SideFigures(value, cell.step_time_median, cell.step_time_p95)


def _means(versus: Versus) -> list[MeanChange]:
    """Return the mean of each backend; that of all only if there are several."""
    means = [MeanChange(backend, suite) for backend, suite in versus.by_backend.items()]
    return [*means, MeanChange(None, versus.suite)] if versus.suite and len(means) > 1 else means


def _advice(versus: Versus) -> str:
    undecided = [comparison for comparison in versus.comparisons if comparison.outcome is GateOutcome.UNDECIDED]
    if versus.paired or not undecided:
        return ""
    return ACROSS_ADVICE if any(comparison.reason == ACROSS_UNKNOWN for comparison in undecided) else ACROSS_WIDE
