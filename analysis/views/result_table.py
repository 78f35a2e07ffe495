"""The table of a run: for each work its cells, with the figures that they are compared by. Pure.

The tables of terminal, report, JSON document and Python API render it, and leave out what does not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from keras_matrix.analysis.comparison.context import NO_CONTEXT, RunContext, SameWork, cell_caveats
from keras_matrix.analysis.comparison.primary_metric import (
    STEP_TIME,
    MetricSummary,
    completed,
    metrics_over,
    primary_value,
)
from keras_matrix.analysis.comparison.ratios import repeats_for_intervals
from keras_matrix.analysis.comparison.run_summary import Answer, answer, summary_lines, undecided
from keras_matrix.analysis.comparison.starts import WarmCache, warm_caches
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.cost import CellCost, cell_cost
from keras_matrix.analysis.fc import FcFigure, fc_figures, gap_lines
from keras_matrix.analysis.keras_cost import KerasCost, keras_costs
from keras_matrix.analysis.scaling import DeviceScaling, device_scalings
from keras_matrix.analysis.stats import cell_statistics
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.cell_statistics import Hidden
from keras_matrix.analysis.stats.suite import Suite, suite
from keras_matrix.analysis.views.call_ladder import CallLadder, CallRung, call_ladders
from keras_matrix.records.schema import Status
from keras_matrix.records.text import plural, seconds

if TYPE_CHECKING:
    from keras_matrix.analysis.roofline import PeakShare


@dataclass(frozen=True, slots=True)
class CellView:
    """One cell of the table. Times in seconds, memory in bytes; None means not measured.

    `value` is the time per step, or the primary metric of a command in the unit of `cell.figure`; `low` and `high` are
    the ends of its 95 % interval between processes. A value that is not `compared` has no ratio: it is not above zero
    in a process. `ratio` is that to the lowest cell of the work. `smallest_difference` is the relative one that the
    comparison would probably have shown. `call` is its place among the calls of the same work. `statistics`, those
    `intervals` of them that are known and what noise `hidden` are by metric, `parallel` are the figures of an FC mode.
    `cost` is that of a million samples; None without prices.
    """

    name: str
    backend: str
    cell: CellSummary
    value: float | None
    low: float | None
    high: float | None
    compared: bool
    ratio: Estimate | None
    is_lowest: bool
    is_fastest: bool
    tokens_per_s: float | None
    smallest_difference: float | None
    share: PeakShare | None
    scaling: DeviceScaling | None
    warm_cache: WarmCache | None
    keras_cost: KerasCost | None
    call: tuple[CallLadder, CallRung] | None
    parallel: FcFigure | None
    statistics: Mapping[str, float]
    hidden: Mapping[str, Hidden]
    caveats: tuple[str, ...]
    intervals: Mapping[str, Estimate]
    cost: CellCost | None

    @property
    def is_step(self) -> bool:
        """Whether the value is the time per step; else it is the metric of a command."""
        return self.cell.figure == STEP_TIME

    @property
    def share_of_peak(self) -> float | None:
        """The share of the machine's best measured product that the cell reaches."""
        return self.share.share_of_peak if self.share else None

    @property
    def metrics(self) -> list[MetricSummary]:
        """All metrics of a command over its processes; none for a workload."""
        return metrics_over(completed(self.cell.records))

    @property
    def endings(self) -> Counter[Status]:
        """How many processes ended with each status."""
        return Counter(record.status for record in self.cell.records)

    @property
    def failed_with(self) -> str:
        """The statuses of its failures."""
        return ", ".join(sorted({status.value for status, _ in self.cell.failures}))

    @property
    def processes(self) -> int:
        """The number of processes with figures."""
        return len(self.cell.measured)


@dataclass(frozen=True, slots=True)
class WorkView:
    """One work: its cells in the order of its row, whether they did the same work, and what would decide it.

    `advice` is empty for a verdict that is not open. `notes` are the parts of epochs that were cut, what several
    devices gain, what warm caches save, what Keras and what a call costs, a line each. `device_checks` say whether
    several devices do the work of one.
    """

    row: Row
    cells: tuple[CellView, ...]
    run_context: RunContext
    same_work: SameWork
    device_checks: tuple[str, ...]
    advice: str
    notes: tuple[str, ...]

    def on(self, backend: str) -> CellView | None:
        """Return the cell of a backend; None without one."""
        return next((cell for cell in self.cells if cell.backend == backend), None)

    def same_work_on(self, backend: str) -> SameWork:
        """Return whether one backend did the same work as the others."""
        return self.run_context.same_work(self.row, backend)


@dataclass(frozen=True)
class ResultTable:
    """The works of a run in their order, and what Keras and its calls cost in them; means and sentences on demand."""

    works: tuple[WorkView, ...]
    run_context: RunContext
    keras_costs: tuple[KerasCost, ...]
    call_ladders: tuple[CallLadder, ...] = ()

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the works."""
        return [work.row for work in self.works]

    @cached_property
    def cells(self) -> list[CellView]:
        """The cells of all works."""
        return [cell for work in self.works for cell in work.cells]

    @cached_property
    def by_id(self) -> dict[str, CellView]:
        """The cells of all works by cell_id."""
        return {view.cell.cell_id: view for view in self.cells}

    @property
    def parallel(self) -> list[FcFigure]:
        """The figures of the cells of the FC modes."""
        return [view.parallel for view in self.cells if view.parallel]

    @property
    def scalings(self) -> list[DeviceScaling]:
        """What the cells on several devices gain."""
        return [view.scaling for view in self.cells if view.scaling]

    @cached_property
    def suites(self) -> list[Suite]:
        """The geometric means over the works, by league."""
        return suite(self.rows)

    @cached_property
    def answer(self) -> Answer:
        """What the run shows, in one sentence and as values."""
        return answer(self.rows, self.suites)

    @cached_property
    def summary(self) -> list[str]:
        """The summary of the run and the gaps of its FC modes, as lines."""
        cells = {cell_id: view.cell for cell_id, view in self.by_id.items()}
        return [*summary_lines(self.rows, self.suites), *gap_lines(self.parallel, cells)]

    @property
    def repeats_advice(self) -> str:
        """Advice if some rows have ratios but too few repeats for an interval, else empty; the command has a line."""
        needed_repeats = [
            repeat_count for row in self.rows if (repeat_count := repeats_for_intervals(row.ratios)) is not None
        ]
        if not needed_repeats:
            return ""
        rows_text = "the row has" if len(self.rows) == 1 else f"{len(needed_repeats)} of {len(self.rows)} rows have"
        head, command = f"{rows_text} too few repeats for an interval; for verdicts", self.run_context.command
        if command is None:
            return f"{head} measure with --repeats {max(needed_repeats)}, or --repeats auto"
        return f"{head}:\n  {command} --repeats {max(needed_repeats)}"


@dataclass(frozen=True, slots=True)
class _Gains:
    """What cells gain or cost against others of the table, by cell_id."""

    scalings: Mapping[str, DeviceScaling]
    warm_caches: Mapping[str, WarmCache]
    keras_costs: Mapping[str, KerasCost]
    parallel: Mapping[str, FcFigure]
    calls: Mapping[str, tuple[CallLadder, CallRung]]

    def notes(self, row: Row) -> tuple[str, ...]:
        """Return a line for each gain or cost of a row's cells, by kind."""
        cell_ids = {cell.cell_id for cell in row.cells.values()}
        kinds = (
            ("scaling", self.scalings),
            ("warm compile cache", self.warm_caches),
            ("cost of Keras", self.keras_costs),
        )
        lines = [
            f"{kind}: {gain.text}" for kind, gains in kinds for cell_id, gain in gains.items() if cell_id in cell_ids
        ]
        lines += [
            f"call: {ladder.sentence(rung)}"
            for cell_id, (ladder, rung) in self.calls.items()
            if cell_id in cell_ids and rung.call != ladder.reference
        ]
        return tuple(lines)


def result_table(rows: Sequence[Row], run_context: RunContext = NO_CONTEXT) -> ResultTable:
    """Return the table of these rows, in their context."""
    cells = [cell for row in rows for cell in row.cells.values()]
    ladders = call_ladders(rows)
    gains = _Gains(
        {scaling.cell_id: scaling for scaling in device_scalings(rows)},
        {cache.cell_id: cache for cache in warm_caches(rows)},
        {cost.cell_id: cost for cost in keras_costs(rows)},
        {figure.cell_id: figure for figure in fc_figures(cells, run_context.shares)},
        {rung.cell_id: (ladder, rung) for ladder in ladders for rung in ladder.rungs},
    )
    advice = {key: undecided_row.text(run_context.command) for key, undecided_row in undecided(rows).items()}
    views = [tuple(_cell(row, backend, run_context, gains) for backend in row.cells) for row in rows]
    works = [
        WorkView(
            row,
            row_views,
            run_context,
            run_context.same_work(row),
            run_context.on_several_devices(row),
            advice.get(row.key, ""),
            (*_cut_epochs(row), *gains.notes(row), *_cost_notes(row_views)),
        )
        for row, row_views in zip(rows, views, strict=True)
    ]
    return ResultTable(tuple(works), run_context, tuple(gains.keras_costs.values()), tuple(ladders))


def _cost_notes(views: Sequence[CellView]) -> list[str]:
    """Return a line for each cell whose cost is not known."""
    return [f"no cost of {view.backend}: {view.cost.reason}" for view in views if view.cost and view.cost.reason]


def _cut_epochs(row: Row) -> list[str]:
    """Return a line for each cell whose epochs were cut: the time of a step, of an epoch's end, of a whole epoch."""
    lines = []
    for backend, cell in row.cells.items():
        times = next((record.times for record in cell.measured if record.times.training_step_time_s), None)
        if times is None:
            continue
        figures = cell_statistics.values(cell)
        step_text = seconds(figures["times.training_step_time_s"])
        end_text = seconds(figures["times.epoch_end_time_s"])
        whole_text = (
            "a whole epoch is not known"
            if times.whole_epoch_steps is None
            else f"extrapolated to {plural(times.whole_epoch_steps, 'step')}: {seconds(cell.epoch_time_s)} an epoch"
        )
        lines.append(
            f"epochs were cut: {backend}: {step_text} a training step, {end_text} an epoch's end; {whole_text}"
        )
    return lines


def _cell(row: Row, backend: str, run_context: RunContext, gains: _Gains) -> CellView:
    cell = row.cells[backend]
    step_time = cell.step_time
    return CellView(
        name=f"{row.title} on {backend}",
        backend=backend,
        cell=cell,
        value=step_time.centre if step_time else primary_value(cell.measured),
        low=step_time.low if step_time else None,
        high=step_time.high if step_time else None,
        compared=step_time is not None,
        ratio=next((ratio.estimate for ratio in row.ratios if ratio.backend == backend), None),
        is_lowest=row.lowest == backend,
        is_fastest=row.fastest == backend,
        tokens_per_s=_tokens_per_s(cell),
        smallest_difference=row.smallest_difference(backend),
        share=run_context.shares.get(cell.cell_id),
        scaling=gains.scalings.get(cell.cell_id),
        warm_cache=gains.warm_caches.get(cell.cell_id),
        keras_cost=gains.keras_costs.get(cell.cell_id),
        call=gains.calls.get(cell.cell_id),
        parallel=gains.parallel.get(cell.cell_id),
        statistics=cell_statistics.values(cell),
        hidden=cell_statistics.hidden(cell),
        caveats=cell_caveats(cell, run_context),
        intervals=cell_statistics.intervals(cell),
        cost=cell_cost(cell, run_context.prices) if run_context.prices else None,
    )


def _tokens_per_s(cell: CellSummary) -> float | None:
    """Return the tokens of all prompts that are generated per second."""
    times = next((record.times for record in cell.measured if record.times.tokens_per_s), None)
    if times is None or not (times.tokens_per_s and times.samples_per_s and cell.samples_per_s):
        return None
    return cell.samples_per_s * times.tokens_per_s / times.samples_per_s
