"""Curves of what processes used over time: host memory; memory, utilisation and power of a device if it reports them.

One picture per piece of work and quantity, one strip per backend, one curve per process. The horizontal axis is the
time a process worked, without its pauses; the vertical axis goes from zero to the largest value of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import EDGE, Axis
from keras_matrix.dashboards.charts.dot_plots import Strip, StripPicture, band, level, strip_picture
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, Value
from keras_matrix.dashboards.charts.picture import CURVE_HEIGHT, CURVE_WIDTH, Curves, slot_of
from keras_matrix.records.instruments.usage import MemoryUse, Usage, UsageSeries
from keras_matrix.records.schema import Record
from keras_matrix.records.text import (
    MEMORY_UNITS,
    PERCENT,
    SECOND,
    Unit,
    bytes_text,
    number,
    plural,
    quantity,
    unit_for,
)

STRIP_HEIGHT, MARGIN = 76, 6
# The span that a peak of device memory covers.
SPANS = {
    "process": "peak of the allocator over the full process, compilation included: this backend cannot reset it",
    "measured_epochs": "peak of the allocator over the measured epochs",
}
MOST_CURVES, MOST_PLACES, MOST_WORKS = 6, 150, 40
WATT = Unit("W", 1.0)
POWER_SOURCES = {"instant": " (instantaneous)", "power_usage": " (averages over up to 1 s)"}
SeriesByRepeat = Mapping[tuple[str, int, int], UsageSeries]
Values = Sequence[int | float | None]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity with a picture: its name, its values, its unit (None: of memory), and its summary's peak and notes.

    `values` and `peak` are attribute paths: of a usage series, and of the usage of a record.
    """

    name: str
    values: str
    unit: Unit | None
    peak: str
    notes: Callable[[Usage], list[str]]

    def values_of(self, series: UsageSeries) -> Values:
        """Return the values of a series."""
        values: Values = getattr(series, self.values)
        return values

    def peak_of(self, usage: Usage | None) -> str:
        """Return the peak of a process as text, a dash if it was not measured."""
        group, _, name = self.peak.partition(".")
        peak = getattr(getattr(usage, group, None), name, None)
        return bytes_text(peak) if self.unit is None else quantity(peak, self.unit)


def pictures(rows: Sequence[Row], usage_series: SeriesByRepeat) -> list[StripPicture]:
    """Return the pictures of the first `MOST_WORKS` of these rows."""
    series_by_quantity = [
        (drawn_quantity, {key: series for key, series in usage_series.items() if drawn_quantity.values_of(series)})
        for drawn_quantity in DRAWN
    ]
    drawn_pictures = (
        _picture(row, drawn_quantity, series)
        for row in rows[:MOST_WORKS]
        for drawn_quantity, series in series_by_quantity
    )
    return [picture for picture in drawn_pictures if picture]


def left_out(rows: Sequence[Row], usage_series: SeriesByRepeat) -> str | None:
    """Return how many rows have curves but no picture, None if every row has its pictures."""
    count = sum(any(_known(cell, usage_series) for cell in row.cells.values()) for row in rows[MOST_WORKS:])
    return f"{plural(count, 'more piece', 'more pieces')} of work left out; the records have all" if count else None


def _picture(row: Row, drawn_quantity: Quantity, usage_series: SeriesByRepeat) -> StripPicture | None:
    series_by_backend = {backend: _known(cell, usage_series) for backend, cell in row.cells.items()}
    shown_series = [
        series for backend_series in series_by_backend.values() for _, series in backend_series[:MOST_CURVES]
    ]
    if not shown_series:
        return None
    x_axis = axes.from_zero([max(s.times_s[-1], 1e-3) for s in shown_series], "time the process worked, s", SECOND)
    most = max(value for series in shown_series for value in drawn_quantity.values_of(series) if value is not None)
    y_axis = axes.from_zero([most or 1.0], drawn_quantity.name, drawn_quantity.unit or unit_for([most], MEMORY_UNITS))
    strips = [
        _strip(backend, series_by_backend[backend], drawn_quantity, (x_axis, y_axis))
        for backend in row.cells
        if series_by_backend[backend]
    ]
    return StripPicture(row.title, f"{drawn_quantity.name}, {y_axis.unit.name}", x_axis, strips)


def _known(cell: CellSummary, usage_series: SeriesByRepeat) -> list[tuple[Record, UsageSeries]]:
    return [
        (record, usage_series[record.key]) for record in cell.records if record.usage and record.key in usage_series
    ]


def _strip(
    backend: str, recorded: Sequence[tuple[Record, UsageSeries]], drawn_quantity: Quantity, scales: tuple[Axis, Axis]
) -> Strip:
    (x_axis, y_axis), shown_records, first_usage = scales, recorded[:MOST_CURVES], recorded[0][0].usage
    peak, notes = drawn_quantity.peak_of(first_usage), drawn_quantity.notes(first_usage) if first_usage else []
    if len(shown_records) < len(recorded):
        notes = [*notes, f"the first {len(shown_records)} of {plural(len(recorded), 'process', 'processes')}"]
    summary = f"{backend}, {drawn_quantity.name}: peak {peak}; {', '.join(notes)}"
    picture = strip_picture(slot_of(backend), STRIP_HEIGHT, summary)
    for begun_s, ended_s in shown_records[0][1].epochs_s:
        tip = f"a measured epoch, {quantity(ended_s - begun_s, SECOND)}"
        width = x_axis.share(ended_s) - x_axis.share(begun_s)
        picture.axes.append(band(x_axis.place(begun_s), width, STRIP_HEIGHT, tip))
    ticks = y_axis.ticks()
    for tick in ticks[:: max(1, len(ticks) // 2)]:
        picture.axes.extend(level(_height(float(tick.at.rstrip("%"))), tick.label))
    paths = tuple(
        (
            _path(series.times_s, drawn_quantity.values_of(series), x_axis, y_axis),
            f"{backend}, repeat {record.repeat}: peak {drawn_quantity.peak_of(record.usage)}",
        )
        for record, series in shown_records
    )
    picture.marks.append(Curves(MARGIN, STRIP_HEIGHT - 2 * MARGIN, paths))
    return Strip(backend, peak, notes, picture)


def _height(share: float) -> float:
    """Return the distance in pixels of a share of the vertical axis from the top of the strip."""
    inner = (share - EDGE) / (100 - 2 * EDGE)
    return round(MARGIN + (1 - inner) * (STRIP_HEIGHT - 2 * MARGIN), 1)


def _path(times_s: Sequence[float], values: Values, x_axis: Axis, y_axis: Axis) -> str:
    """Return a curve through the values, interrupted at missing ones."""
    step = -(-len(times_s) // MOST_PLACES)
    point_runs: list[list[tuple[str, str]]] = [[]]
    for index in range(0, len(times_s), step):
        known_values = [value for value in values[index : index + step] if value is not None]
        if not known_values:
            point_runs.append([])
            continue
        x = x_axis.share(times_s[index]) * CURVE_WIDTH / 100
        y = (1 - (y_axis.share(max(known_values)) - EDGE) / (100 - 2 * EDGE)) * CURVE_HEIGHT
        point_runs[-1].append((f"{x:.0f}", f"{y:.1f}"))
    return "".join("M" + "L".join(map(" ".join, _bends(point_run))) for point_run in point_runs if point_run)


def _bends(points: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the points of a curve without those inside a level stretch: memory is level most of the time."""
    threes = zip(points, points[1:], points[2:], strict=False)
    inner = [middle for before, middle, after in threes if not before[1] == middle[1] == after[1]]
    return [points[0], *inner, *points[1:][-1:]]


def _memory_notes(memory_use: MemoryUse | None) -> list[str]:
    if memory_use is None:
        return []
    unit = unit_for([memory_use.max_bytes], MEMORY_UNITS)
    deviation = [f"deviation {quantity(memory_use.std_bytes, unit)}"] if memory_use.samples > 1 else []
    return [f"mean {quantity(memory_use.mean_bytes, unit)}", *deviation]


def _host_notes(usage: Usage) -> list[str]:
    known_bytes = [size for size in usage.host_proportional_bytes if size is not None]
    return _memory_notes(usage.host_anonymous) + [f"proportional {bytes_text(size)}" for size in known_bytes[-1:]]


def _device_notes(usage: Usage) -> list[str]:
    notes, process_memory, total = _memory_notes(usage.device_memory), usage.device_process_memory, usage.devices_memory
    notes += [f"of its own {bytes_text(process_memory.max_bytes)}"] if process_memory else []
    return notes + ([f"{usage.devices} GPUs together {bytes_text(total.max_bytes)}"] if total else [])


def _utilisation_notes(usage: Usage) -> list[str]:
    utilisation = usage.device_utilisation
    return [f"mean {quantity(utilisation.mean_share, PERCENT)}"] if utilisation else []


def _power_notes(usage: Usage) -> list[str]:
    notes = []
    if usage.device_average_power_w is not None:
        gpus_text = f" of {usage.devices} GPUs" if (usage.devices or 1) > 1 else ""
        notes.append(f"energy over time{gpus_text} {quantity(usage.device_average_power_w, WATT)}")
    if usage.device_power:
        source = POWER_SOURCES.get(usage.device_power_source or "", "")
        notes.append(f"mean of samples {quantity(usage.device_power.mean_w, WATT)}{source}")
    return [*notes, f"{number(usage.samples_per_j)} samples/J"] if usage.samples_per_j is not None else notes


DRAWN = (
    Quantity("anonymous host memory", "host_anonymous_bytes", None, "host_anonymous.peak_bytes", _host_notes),
    Quantity("memory reserved on the device", "device_memory_bytes", None, "device_memory.peak_bytes", _device_notes),
    Quantity(
        "device utilisation", "device_utilisation_share", PERCENT, "device_utilisation.max_share", _utilisation_notes
    ),
    Quantity("device power", "device_power_w", WATT, "device_power.max_w", _power_notes),
)


# --- The peak of a GPU's memory as values of the table, with one unit for a page --------------------------------------


def device_unit(rows: Sequence[Row]) -> Unit:
    """Return the unit of every peak of device memory on a page."""
    peak_bytes = [cell.peak_device_memory_bytes for row in rows for cell in row.cells.values()]
    return unit_for([peak for peak in peak_bytes if peak is not None], MEMORY_UNITS)


def device_memory_values(cells: Sequence[CellSummary | None], unit: Unit) -> list[Value]:
    """Return the peak of each backend of a row; peaks of the full process are marked if the backends differ."""
    spans = {cell.device_memory_span for cell in cells if cell and cell.peak_device_memory_bytes is not None}
    return [_value(cell, unit, len(spans) > 1) for cell in cells]


def _value(cell: CellSummary | None, unit: Unit, differ: bool) -> Value:
    if cell is None or cell.peak_device_memory_bytes is None:
        return NOT_MEASURED
    span = cell.device_memory_span or ""
    note = "of the process" if differ and span == "process" else ""
    return Value(number(cell.peak_device_memory_bytes, unit.size), note, SPANS.get(span, ""))
