"""Pictures of a run as points: from rows to lanes, marks and places, with no markup.

Every process and every kept epoch is a mark of its own; nothing is drawn as a bar. Knows nothing of HTML: the template
turns these values into SVG.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from keras_matrix.analysis.comparison.primary_metric import STEP_TIME, figure_value
from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.dot_plots import (
    MIDDLE,
    Band,
    Group,
    Lane,
    Mark,
    Measured,
    Picture,
    Stroke,
    Word,
    epoch_axis,
    in_brackets,
    memory_axis,
    memory_lane,
    slot_of,
    start_lane,
)
from keras_matrix.dashboards.charts.format import SECOND, Unit, interval, plural, quantity, unit_for, whole
from keras_matrix.dashboards.report.device_memory import device_unit
from keras_matrix.records.schema import MEASURED, Record

REPEAT_HEIGHT = 17
LANE_TOP = 13
LEAST_HEIGHT = 42
COMMAND_CHARACTERS = 200


def work_details(row: Row) -> str:
    """Return in one line what the work of a row is, as far as its records tell."""
    cell = next(iter(row.cells.values()))
    settings = cell.settings
    if run := next((record.task for record in cell.records if record.task), None):
        return f"external command · {shlex.join(run.command)[:COMMAND_CHARACTERS]}"
    resolved = next((r.resolved for c in row.cells.values() for r in c.measured if r.resolved), None)
    predict = settings.phase == "predict"
    details = [f"batch {settings.batch_size}"]
    if resolved:
        details.append(plural(resolved.steps_per_epoch, "call" if predict else "step") + " an epoch")
    if resolved and resolved.parameters is not None:
        details.append(f"{whole(resolved.parameters)} parameters")
    details += [settings.phase, settings.device, settings.precision, settings.feed, f"league {settings.league}"]
    return " · ".join(details)


def epoch_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Return per row the kept epochs of every process, per step: one lane a backend, one line of dots a process."""
    return [picture for row in rows if (picture := _epoch_picture(row))]


def start_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Return per row the first epoch against the steady one, all on one logarithmic axis in seconds."""
    values = [
        value for r in _measured(rows) for value in (r.times.first_epoch_time_s, r.times.epoch_time_median_s) if value
    ]
    if not values:
        return []
    axis = epoch_axis(values)
    timed = [row for row in rows if any(record.task is None for record in _measured([row]))]
    return [_grouped(row, axis, _start_lane) for row in timed]


def memory_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Return per row the peaks of every process, all on one linear axis from zero."""
    peaks = [peak for r in _measured(rows) for peak in _peaks(r) if peak]
    if not peaks:
        return []
    axis = memory_axis(peaks)
    lane = partial(_memory_lane, device_unit(rows))
    return [_grouped(row, axis, lane) for row in rows if _measured([row])]


def _measured(rows: Iterable[Row]) -> list[Record]:
    return [record for row in rows for cell in row.cells.values() for record in cell.measured]


def _grouped(row: Row, axis: Axis, lane: Callable[[str, CellSummary, Axis], Lane]) -> Picture:
    lanes = [lane(backend, cell, axis) for backend, cell in row.cells.items()]
    return Picture(row.title, work_details(row), row.verdict, axis, lanes)


def _per_step(record: Record) -> list[float]:
    if record.task is not None:
        return [found] if (found := figure_value(record)) else []
    if record.resolved is None or not record.resolved.steps_per_epoch:
        return []
    return [seconds / record.resolved.steps_per_epoch for seconds in record.times.epoch_times_s]


def _epoch_picture(row: Row) -> Picture | None:
    dots = [value for record in _measured([row]) for value in _per_step(record)]
    if not dots:
        return None
    figure = next(iter(row.cells.values())).figure
    unit = unit_for([sorted(dots)[len(dots) // 2]]) if figure == STEP_TIME else Unit(figure.unit, 1.0)
    ends = [end for cell in row.cells.values() for end in _ends(cell.step_time)]
    predict = any(cell.settings.phase == "predict" for cell in row.cells.values())
    what = f"time per {'call' if predict else 'step'}" if figure == STEP_TIME else figure.name
    axis = axes.fitted(dots + ends, f"{what}, {unit.name}".rstrip(", "), unit)
    if axis.log:
        axis = Axis(f"{axis.title} (logarithmic)", axis.low, axis.high, log=True, unit=unit)
    return _grouped(row, axis, _epoch_lane)


def _ends(estimate: Estimate | None) -> list[float]:
    return [end for end in (estimate.low, estimate.centre, estimate.high) if end] if estimate else []


def _epoch_lane(backend: str, cell: CellSummary, axis: Axis) -> Lane:
    slot = slot_of(backend)
    lane = Lane(
        backend,
        slot,
        height=max(LEAST_HEIGHT, len(cell.records) * REPEAT_HEIGHT + LANE_TOP - 4) if cell.measured else None,
        figure=quantity(cell.step_time.centre if cell.step_time else None, axis.unit),
        notes=_interval_notes(cell.step_time, axis.unit),
        summary=_said(backend, cell, axis.unit),
        band=_band(cell.step_time, axis),
    )
    if not cell.measured:
        lane.words.append(_why_empty(cell))
        return lane
    for line, record in enumerate(sorted(cell.records, key=lambda r: r.repeat)):
        _add_repeat(lane, record, LANE_TOP + line * REPEAT_HEIGHT, axis)
    return lane


def _add_repeat(lane: Lane, record: Record, y: float, axis: Axis) -> None:
    name = f"repeat {record.repeat + 1}"
    if record.status not in MEASURED:
        lane.words.append(Word("0%", y, f"{name}: {record.status}"))
        return
    figure, dots = figure_value(record), _per_step(record)
    group = Group(
        f"{name}: {quantity(figure, axis.unit)}" + ("" if record.task else in_brackets(dots, axis.unit, "epochs "))
    )
    if figure:
        at = axis.place(figure)
        group.strokes.append(Stroke(at, at, y - 7, y + 7, lane.slot))
    group.marks.extend(Mark(axis.place(dot), y, lane.slot) for dot in dots)
    lane.groups.append(group)


def _band(estimate: Estimate | None, axis: Axis) -> Band | None:
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    width = axis.share(estimate.high) - axis.share(estimate.low)
    return Band(axis.place(estimate.low), f"{max(width, 0.1):.2f}%", axis.place(estimate.centre))


def _range(estimate: Estimate, unit: Unit) -> str:
    bounds = interval(estimate.low, estimate.high, estimate.centre, unit.size)
    return f"{bounds}\u00a0{unit.name}" if bounds else "not known"


def _interval_notes(estimate: Estimate | None, unit: Unit) -> list[str]:
    if estimate is None:
        return ["not measured"]
    if estimate.low is None:
        return ["no interval: " + plural(estimate.count, "process", "processes")]
    return [_range(estimate, unit)]


def _said(backend: str, cell: CellSummary, unit: Unit) -> str:
    if cell.step_time is None:
        return f"{backend}: not measured"
    figure = quantity(cell.step_time.centre, unit)
    processes = plural(cell.step_time.count, "process", "processes")
    return f"{backend}: {figure}, {processes}, interval {_range(cell.step_time, unit)}"


def _start_lane(backend: str, cell: CellSummary, axis: Axis) -> Lane:
    firsts = [seconds for r in cell.measured if (seconds := r.times.first_epoch_time_s)]
    medians = [seconds for r in cell.measured if (seconds := r.times.epoch_time_median_s)]
    first, steady = Measured(cell.first_epoch_time_s, firsts), Measured(cell.epoch_time_s, medians)
    if cell.measured:
        return start_lane(backend, axis, first, steady, [_start_parts(cell)])
    return replace(start_lane(backend, axis, first, steady), notes=["not measured"], words=[_why_empty(cell)])


def _start_parts(cell: CellSummary) -> str:
    times = [record.times for record in cell.measured]
    parts = {
        "trace": [t.trace_time_s for t in times],
        "compile": [t.compile_time_s for t in times],
        "first step": [t.first_step_time_s for t in times],
    }
    middles = {name: _middle(values) for name, values in parts.items()}
    texts = [f"{name} {quantity(middle, SECOND)}" for name, middle in middles.items() if middle is not None]
    unknown = " and ".join(name for name, middle in middles.items() if middle is None)
    return " · ".join([*texts, f"{unknown} not measured"] if unknown else texts)


def _middle(values: Iterable[float | None]) -> float | None:
    found = sorted(value for value in values if value is not None)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2 if found else None


def _why_empty(cell: CellSummary) -> Word:
    counted = Counter(record.status.value for record in cell.records)
    return Word("0%", MIDDLE, ", ".join(f"{count} × {status}" for status, count in sorted(counted.items())))


def _peaks(record: Record) -> tuple[int | None, int | None]:
    return record.memory.peak_host_memory_bytes, record.memory.peak_device_memory_bytes


def _peaks_of(cell: CellSummary, place: int) -> list[int]:
    return [peak for record in cell.measured if (peak := _peaks(record)[place]) is not None]


def _memory_lane(unit: Unit, backend: str, cell: CellSummary, axis: Axis) -> Lane:
    host = Measured(cell.peak_host_memory_bytes, _peaks_of(cell, 0))
    device = Measured(cell.peak_device_memory_bytes, _peaks_of(cell, 1))
    missed = device.figure is not None or cell.settings.device != "cpu"  # a CPU has no device memory to miss
    lane = memory_lane(backend, axis, host, (device, unit) if missed else None)
    return lane if cell.measured else replace(lane, words=[_why_empty(cell)])
