"""The tables of a trace for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison import starts
from keras_matrix.records.schema import Record
from keras_matrix.records.text import number, percentage, plural, seconds
from keras_matrix.records.traces.table import Gap, Table, TimeShare
from keras_matrix.runner.cli.render.format import columns

NOT_REPORTED = "(not reported)"
LONGEST_NAME = 60


def heading(table: Table, measured_step_s: float | None) -> list[str]:
    """Return the steps that were traced, and how busy the device was."""
    workers = f" of {table.workers} workers" if table.workers > 1 else ""
    if table.steps and table.step_time_s is not None:
        without = f"; {seconds(measured_step_s)} as measured, without it" if measured_step_s else ""
        first = (
            f"{plural(table.steps, 'step')}{workers}: {seconds(table.step_time_s)} each with the profiler on{without}"
        )
    else:
        first = f"{seconds(table.window_s)}{workers}; no step was marked"
    busy = "not known" if table.busy_share is None else f"{percentage(table.busy_share)} of the time"
    idle = f"{plural(table.gap_count, 'gap')}, {seconds(table.gap_time_s)} in all"
    lines = [first, f"{table.place} busy {busy}; {idle}"]
    if table.overlap_share is not None:
        lines.append(f"communication overlapped by compute: {percentage(table.overlap_share)} of its time")
    lines += [f"warning: the profiler reports: {text}" for text in table.warnings]
    return [*lines, *(f"caveat: {text}" for text in table.notes)]


def start_lines(record: Record) -> list[str]:
    """Return how the traced process started, as far as its backend reports it."""
    start = starts.start_of([record])
    parts = {"trace": start.trace_time_s, "compile": start.compile_time_s, "first step": start.first_step_time_s}
    known = ", ".join(f"{name} {seconds(value)}" for name, value in parts.items() if value is not None)
    compiling = start.trace_time_s is not None or start.compile_time_s is not None
    return [f"start of the process: {known}{f' ({starts.MEANING})' if compiling else ''}"] if known else []


def table_lines(table: Table, top: int) -> list[str]:
    """Return the tables: by operation, layer, phase and, if there are several, kind of work; and the largest gaps."""
    lines: list[str] = []
    named = {"operation": table.by_operation, "layer": table.by_layer, "phase": table.by_phase}
    if len(table.by_kind) > 1:
        named["kind"] = table.by_kind
    for name, parts in named.items():
        lines += ["", *_part_lines(table, name, parts, top)]
    return [*lines, "", *_gap_lines(table, top), ""]


def _part_lines(table: Table, name: str, parts: Sequence[TimeShare], top: int) -> list[str]:
    steps, per = table.steps or 1, " a step" if table.steps else ""
    shown = [(_short(part.name or NOT_REPORTED), [part]) for part in parts[:top]]
    shown += [(f"{len(parts) - top} others", list(parts[top:]))] if len(parts) > top else []
    rows = [
        [
            title,
            percentage(sum(part.share for part in several)),
            seconds(sum(part.time_s for part in several) / steps),
            number(sum(part.count for part in several) / steps),
        ]
        for title, several in shown
    ]
    return columns([[f"by {name}", "share", f"time{per}", f"count{per}"], *rows], frozenset((1, 2, 3)))


def _gap_lines(table: Table, top: int) -> list[str]:
    if not table.gaps:
        return ["no gaps"]
    rows = [["gaps, the longest", "begins at", "after", "before", "meanwhile"]]
    return columns(rows + [_gap_row(gap, table.workers) for gap in table.gaps[:top]], frozenset((0, 1)))


def _gap_row(gap: Gap, workers: int) -> list[str]:
    where = f"worker {gap.worker}: " if workers > 1 else ""
    around = [_short(name) if name else "-" for name in (gap.before, gap.after, gap.meanwhile)]
    return [f"{where}{seconds(gap.duration_s)}", seconds(gap.begin_s), *around]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."
