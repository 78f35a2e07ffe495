"""The dot plots of a report, from the rows of its table; values without markup.

Every process and every measured epoch is a separate mark; there are no bars.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, figure_value
from keras_matrix.analysis.comparison.starts import start_of
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import WorkView
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import (
    CallFigures,
    CellFigure,
    Ends,
    Strip,
    StripPicture,
    band,
    call_pictures,
    epoch_axis,
    in_brackets,
    memory_axis,
    memory_strip,
    start_strip,
    strip_picture,
)
from keras_matrix.dashboards.charts.picture import MIDDLE, TO_MIDDLE, Dot, Mark, MarkGroup, Segment, Word, slot_of
from keras_matrix.dashboards.charts.usage import device_unit
from keras_matrix.records.epoch_figures import whole_epochs_s
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.settings import FIT
from keras_matrix.records.text import SECOND, Unit, integer, interval, plural, quantity, unit_for

REPEAT_HEIGHT = 17
STRIP_TOP = 13
LEAST_HEIGHT = 42
COMMAND_CHARACTERS = 200


def work_details(row: Row) -> str:
    """Return a description of a row's work in one line, with the details that its records have."""
    cell = next(iter(row.cells.values()))
    settings = cell.settings
    if run := next((record.task for record in cell.records if record.task), None):
        return f"external command · {shlex.join(run.command)[:COMMAND_CHARACTERS]}"
    resolved = next((r.resolved for c in row.cells.values() for r in c.measured if r.resolved), None)
    is_call = settings.phase != FIT
    details = [f"batch {settings.batch_size}"]
    if resolved:
        details.append(plural(resolved.steps_per_epoch, "call" if is_call else "step") + " an epoch")
    if resolved and resolved.parameters is not None:
        details.append(f"{integer(resolved.parameters)} parameters")
    details += [settings.phase, settings.device, settings.precision, settings.feed, f"league {settings.league}"]
    return " · ".join(details)


def epoch_pictures(rows: Sequence[Row]) -> list[StripPicture]:
    """Return per row the measured epochs, per step: one strip per backend, one line of dots per process."""
    return [picture for row in rows if (picture := _epoch_picture(row))]


def start_pictures(rows: Sequence[Row]) -> list[StripPicture]:
    """Return per row the first epoch and the steady one, all on one logarithmic axis in seconds."""
    values = [
        value for r in _measured(rows) for value in (r.times.first_epoch_time_s, r.times.epoch_time_median_s) if value
    ]
    if not values:
        return []
    axis = epoch_axis(values)
    timed_rows = [row for row in rows if any(record.task is None for record in _measured([row]))]
    return [_grouped(row, axis, _start_strip) for row in timed_rows]


def memory_pictures(rows: Sequence[Row]) -> list[StripPicture]:
    """Return per row the peaks of every process, all on one linear axis from zero."""
    memories = [record.memory for record in _measured(rows)]
    peaks = [peak for m in memories for peak in (m.peak_host_memory_bytes, m.peak_device_memory_bytes) if peak]
    if not peaks:
        return []
    axis = memory_axis(peaks)
    strip = partial(_memory_strip, device_unit(rows))
    return [_grouped(row, axis, strip) for row in rows if _measured([row])]


def ladder_pictures(works: Iterable[WorkView]) -> list[StripPicture]:
    """Return a picture for each work whose model is called in several ways, on all backends."""
    groups: dict[str, tuple[str, list[CallFigures]]] = {}
    for view in (view for work in works for view in work.cells):
        if view.call is None:
            continue
        ladder, rung = view.call
        percentiles = {name: ends_of(estimate) for name, estimate in (("p50", rung.p50), ("p99", rung.p99)) if estimate}
        figures = CallFigures(
            ladder.backend,
            rung.call,
            rung.call == ladder.reference,
            view.cell.step_time.centre if view.cell.step_time else None,
            percentiles,
            ends_of(rung.estimate) if rung.estimate else None,
            rung.facts,
        )
        groups.setdefault(ladder.key, (ladder.work, []))[1].append(figures)
    return call_pictures(list(groups.values()))


def ends_of(estimate: Estimate) -> Ends:
    """Return an estimate as centre, low and high."""
    return estimate.centre, estimate.low, estimate.high


def _measured(rows: Iterable[Row]) -> list[Record]:
    return [record for row in rows for cell in row.cells.values() for record in cell.measured]


def _grouped(row: Row, axis: Axis, strip: Callable[[str, CellSummary, Axis], Strip]) -> StripPicture:
    strips = [strip(backend, cell, axis) for backend, cell in row.cells.items()]
    return StripPicture(row.title, work_details(row), axis, strips)


def _per_step(record: Record) -> list[float]:
    if record.task is not None:
        return [figure] if (figure := figure_value(record)) else []
    if record.resolved is None or not record.resolved.steps_per_epoch:
        return []
    steps = record.resolved.steps_per_epoch
    return [seconds / (record.times.whole_epoch_steps or steps) for seconds in whole_epochs_s(record.times, steps)]


def _epoch_picture(row: Row) -> StripPicture | None:
    dots = [value for record in _measured([row]) for value in _per_step(record)]
    if not dots:
        return None
    figure = next(iter(row.cells.values())).figure
    unit = unit_for([sorted(dots)[len(dots) // 2]]) if figure == STEP_TIME else Unit(figure.unit, 1.0)
    ends = [end for cell in row.cells.values() for end in _ends(cell.step_time)]
    has_calls = any(cell.settings.phase != FIT for cell in row.cells.values())
    label = f"time per {'call' if has_calls else 'step'}" if figure == STEP_TIME else figure.name
    axis = axes.fitted(dots + ends, f"{label}, {unit.name}".rstrip(", "), unit)
    if axis.log:
        axis = replace(axis, title=f"{axis.title} (logarithmic)")
    return _grouped(row, axis, _epoch_strip)


def _ends(estimate: Estimate | None) -> list[float]:
    return [end for end in (estimate.low, estimate.centre, estimate.high) if end] if estimate else []


def _epoch_strip(backend: str, cell: CellSummary, axis: Axis) -> Strip:
    height = max(LEAST_HEIGHT, len(cell.records) * REPEAT_HEIGHT + STRIP_TOP - 4) if cell.measured else None
    picture = strip_picture(slot_of(backend), height, _summary(backend, cell, axis.unit))
    step_time = cell.step_time
    if height and step_time and step_time.low is not None and step_time.high is not None:
        width, centre = axis.share(step_time.high) - axis.share(step_time.low), axis.place(step_time.centre)
        picture.marks.append(band(axis.place(step_time.low), width, height))
        picture.marks.append(Segment(centre, 1, centre, height - 1, "centre"))
    for line, record in enumerate(sorted(cell.records, key=lambda r: r.repeat) if height else ()):
        picture.marks.append(_repeat(record, STRIP_TOP + line * REPEAT_HEIGHT, axis, slot_of(backend)))
    if not height:
        picture.marks.append(_why_empty(cell))
    figure = quantity(step_time.centre if step_time else None, axis.unit)
    return Strip(backend, figure, _interval_notes(step_time, axis.unit), picture)


def _repeat(record: Record, y: float, axis: Axis, slot: int) -> Mark:
    """Return the epochs of a process as dots around its figure; of one without figures, how it ended."""
    name = f"repeat {record.repeat}"
    if record.status not in MEASURED:
        return Word("0%", y + TO_MIDDLE, f"{name}: {record.status}")
    figure, epoch_figures = figure_value(record), _per_step(record)
    tip = f"{name}: {quantity(figure, axis.unit)}" + (
        "" if record.task else in_brackets(epoch_figures, axis.unit, "epochs ")
    )
    dots = [Dot(axis.place(epoch_figure), y, slot) for epoch_figure in epoch_figures]
    place = axis.place(figure) if figure else ""
    return MarkGroup(tip, [*dots, Segment(place, y - 7, place, y + 7)] if figure else dots)


def _range(estimate: Estimate, unit: Unit) -> str:
    ends = interval(estimate.low, estimate.high, estimate.centre, unit.size)
    return f"{ends} {unit.name}" if ends else "not known"


def _interval_notes(estimate: Estimate | None, unit: Unit) -> list[str]:
    if estimate is None:
        return ["not measured"]
    if estimate.low is None:
        return ["no interval: " + plural(estimate.count, "process", "processes")]
    return [_range(estimate, unit)]


def _summary(backend: str, cell: CellSummary, unit: Unit) -> str:
    if cell.step_time is None:
        return f"{backend}: not measured"
    figure = quantity(cell.step_time.centre, unit)
    processes = plural(cell.step_time.count, "process", "processes")
    return f"{backend}: {figure}, {processes}, interval {_range(cell.step_time, unit)}"


def _start_strip(backend: str, cell: CellSummary, axis: Axis) -> Strip:
    firsts = [seconds for r in cell.measured if (seconds := r.times.first_epoch_time_s)]
    medians = [seconds for r in cell.measured if (seconds := r.times.epoch_time_median_s)]
    first_epoch, steady = CellFigure(cell.first_epoch_time_s, firsts), CellFigure(cell.epoch_time_s, medians)
    if cell.measured:
        return start_strip(backend, axis, first_epoch, steady, [_start_parts(cell)])
    strip = start_strip(backend, axis, first_epoch, steady)
    strip.picture.marks.append(_why_empty(cell))
    return replace(strip, notes=["not measured"])


def _start_parts(cell: CellSummary) -> str:
    """Return the first step, a part of the first epoch; and tracing and compiling, which are parts of the process."""
    start = start_of(cell.measured)
    first_step_texts = (
        [] if start.first_step_time_s is None else [f"first step {quantity(start.first_step_time_s, SECOND)}"]
    )
    compile_times_s = {"trace": start.trace_time_s, "compile": start.compile_time_s}
    time_texts = [
        f"{name} {quantity(time_s, SECOND)}" for name, time_s in compile_times_s.items() if time_s is not None
    ]
    unknown_text = " and ".join(name for name, time_s in compile_times_s.items() if time_s is None)
    return " · ".join(
        [*first_step_texts, f"whole process: {', '.join(time_texts)}" if time_texts else f"{unknown_text} not measured"]
    )


def _why_empty(cell: CellSummary) -> Word:
    count_by_status = Counter(record.status.value for record in cell.records)
    return Word("0%", MIDDLE, ", ".join(f"{count} × {status}" for status, count in sorted(count_by_status.items())))


def _memory_strip(unit: Unit, backend: str, cell: CellSummary, axis: Axis) -> Strip:
    memories = [record.memory for record in cell.measured]
    host_bytes = [m.peak_host_memory_bytes for m in memories if m.peak_host_memory_bytes is not None]
    device_bytes = [m.peak_device_memory_bytes for m in memories if m.peak_device_memory_bytes is not None]
    host, device = (
        CellFigure(cell.peak_host_memory_bytes, host_bytes),
        CellFigure(cell.peak_device_memory_bytes, device_bytes),
    )
    is_expected = device.figure is not None or cell.settings.device != "cpu"  # a cell on a CPU has no device memory
    strip = memory_strip(backend, axis, host, (device, unit) if is_expected else None)
    if not cell.measured:
        strip.picture.marks.append(_why_empty(cell))
    return strip
