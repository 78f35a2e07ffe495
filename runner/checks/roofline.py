"""Compares a run with its machine, from the run's records, the stored peaks and the counted work.

`roofline_of` takes what is stored, for reports; the command `runner roofline` first measures and counts what is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks, StoredPeaks
from keras_matrix.runner.checks import work as works

if TYPE_CHECKING:
    from keras_matrix.analysis.comparison.table import Row
    from keras_matrix.analysis.roofline import Roofline
    from keras_matrix.records.run_files import Measurements


def roofline_of(rows: Iterable[Row], measurements: Measurements) -> Roofline:
    """Return each cell's use of the machine from stored figures, without measuring or counting.

    Shares are None if peaks or counts are missing.
    """
    from keras_matrix.analysis.roofline import roofline

    cells = cells_of(rows)
    counted = works.with_catalog(measurements.works, (cell.settings for _, cell in cells))
    return roofline(cells, counted, of_all_images(measurements.peaks) if measurements.peaks else None)


def cells_of(rows: Iterable[Row]) -> list[tuple[str, Any]]:
    """Return every cell of a table with its row's title."""
    return [(row.title, cell) for row in rows for cell in row.cells.values()]


def peaks_of(results: Path, about: Mapping[str, Any]) -> Peaks | None:
    """Return the stored peaks of the machine and versions of a run, or None. Raises `StoreFailure`."""
    stored = peak_files.stored(results, about)
    return of_all_images(stored) if stored else None


def of_all_images(stored: StoredPeaks) -> Peaks:
    """Return the peaks, those of a GPU with what other images, with other backends, measured on the same GPU."""
    from keras_matrix.analysis.roofline import backends, merged

    return merged(stored.own, stored.others) if backends(stored.own) else stored.own


def threads_of(cells: Iterable[tuple[str, Any]]) -> tuple[int, ...]:
    """Return the numbers of CPUs that a run's measured cells could use."""
    from keras_matrix.analysis.roofline import place_of

    places = (place_of(cell) for _, cell in cells)
    return tuple(sorted({place.threads for place in places if place and place.device == "cpu"}))
