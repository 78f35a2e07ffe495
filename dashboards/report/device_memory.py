"""The peak of a GPU's memory in words: one unit for all figures of a page, and what each peak covers."""

from __future__ import annotations

from collections.abc import Sequence

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.dashboards.charts.format import DASH, MEMORY_UNITS, Unit, number, unit_for
from keras_matrix.dashboards.report.shares import Words

OF_PROCESS = {"process": "of the process"}
LONG = {
    "process": "peak of the allocator over the whole process, compilation included: this backend cannot reset it",
    "measured_epochs": "peak of the allocator over the measured epochs",
}


def device_unit(rows: Sequence[Row]) -> Unit:
    """Return the unit of every peak of device memory on a page."""
    peaks = [cell.peak_device_memory_bytes for row in rows for cell in row.cells.values()]
    return unit_for([peak for peak in peaks if peak is not None], MEMORY_UNITS)


def of_device_memory(cells: Sequence[CellSummary | None], unit: Unit) -> list[Words]:
    """Return the peak of each backend of a row, marked where it alone covers the whole process."""
    measured = [cell for cell in cells if cell and cell.peak_device_memory_bytes is not None]
    differ = len({cell.device_memory_span for cell in measured}) > 1
    return [_words(cell, unit, differ) for cell in cells]


def _words(cell: CellSummary | None, unit: Unit, differ: bool) -> Words:
    if cell is None or cell.peak_device_memory_bytes is None:
        return DASH, "", ""
    span = cell.device_memory_span or ""
    return (
        number(cell.peak_device_memory_bytes, unit.size),
        OF_PROCESS.get(span, "") if differ else "",
        LONG.get(span, ""),
    )
