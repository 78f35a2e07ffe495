"""The traces of a run: how each cell spent its time, and the file that Perfetto opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.context import ShownTrace
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.views.trace_view import PartTable, part_tables
from keras_matrix.dashboards.charts.figure_table import Grid, GridRow
from keras_matrix.dashboards.charts.picture import slot_of
from keras_matrix.records.text import NOTHING, number, percentage, plural, seconds
from keras_matrix.records.traces.table import IdleGap, TraceSummary

MOST_ROWS = 10
NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class TraceSheet:
    """One cell's trace; `link` is the path of its file relative to the page."""

    title: str
    backend: str
    slot: int
    link: str
    summary: str
    grids: list[Grid]


def sheets(rows: Sequence[Row], traces: Mapping[str, ShownTrace]) -> list[TraceSheet]:
    """Return a sheet for each traced cell of the table."""
    return [
        _sheet(row.title, backend, traces[cell.cell_id])
        for row in rows
        for backend, cell in sorted(row.cells.items(), key=lambda item: slot_of(item[0]))
        if cell.cell_id in traces
    ]


def _sheet(title: str, backend: str, trace: ShownTrace) -> TraceSheet:
    return TraceSheet(title, backend, slot_of(backend), trace.link, summary(trace.table), grids(trace.table))


def grids(table: TraceSummary) -> list[Grid]:
    """Return the tables of a trace that have rows."""
    all_grids = [*(_parts(part_table) for part_table in part_tables(table, MOST_ROWS)), _gaps(table.gaps)]
    return [grid for grid in all_grids if grid.rows]


def summary(table: TraceSummary) -> str:
    """Return the steps of a trace, how busy its device was, and what is left out."""
    steps = plural(table.steps, "step") if table.steps else "no step marked"
    workers_text = f", {plural(table.workers, 'worker')}" if table.workers > 1 else ""
    step_text = f", {seconds(table.step_time_s)} each with the profiler on" if table.steps else ""
    gaps_text = f"{plural(table.gap_count, 'gap')}, {seconds(table.gap_time_s)} in all"
    device = "" if table.device == "cpu" else f" on the {table.device.upper()}"
    overlap = table.overlap_share
    overlap_text = "" if overlap is None else f"; {percentage(overlap)} of the communication was overlapped by compute"
    busy_note = f"an operation ran {percentage(table.busy_share)} of the time{device}"
    warnings_text = "".join(f"; the profiler reports: {text}" for text in table.warnings)
    caveats_text = "".join(f"; caveat: {text}" for text in table.notes)
    return f"{steps}{workers_text}{step_text}; {busy_note}{overlap_text}; {gaps_text}{warnings_text}{caveats_text}"


def _parts(table: PartTable) -> Grid:
    rows = [
        GridRow(part.name or NOT_REPORTED, [percentage(part.share), seconds(part.time_s), number(part.count)])
        for part in table.parts
    ]
    return Grid(f"By {table.by}", ["share", f"time{table.unit}", f"count{table.unit}"], rows)


def _gaps(gaps: Sequence[IdleGap]) -> Grid:
    rows = [
        GridRow(seconds(gap.duration_s), [gap.before or NOTHING, gap.after or NOTHING, gap.meanwhile or NOTHING])
        for gap in gaps[:MOST_ROWS]
    ]
    return Grid("The longest gaps", ["after", "before", "meanwhile"], rows)
