"""The peak of a GPU's memory as values of the table: one unit for a page, and the span that each peak covers."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, Value
from keras_matrix.records.text import MEMORY_UNITS, Unit, number, unit_for

SPANS = {
    "process": "peak of the allocator over the full process, compilation included: this backend cannot reset it",
    "measured_epochs": "peak of the allocator over the measured epochs",
}


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
