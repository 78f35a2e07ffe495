"""Compares a run with its machine, from the run's records, the stored peaks and the counted work.

`stored` only reads, for reports; the command `runner roofline` first measures and counts the missing figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import CodecError, decode
from keras_matrix.records.instruments import peaks as peak_files
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.schema import Machine
from keras_matrix.runner.checks import work as works

if TYPE_CHECKING:
    from keras_matrix.analysis.comparison.table import Row
    from keras_matrix.analysis.hardware.roofline import Roofline


def stored(results: Path, rows: Iterable[Row], about: Mapping[str, Any]) -> Roofline:
    """Return each cell's use of the machine from stored figures, without measuring or counting.

    `rows` is the run's table, `about` its `run.json`. Shares are None if peaks or counts are missing.
    """
    from keras_matrix.analysis.hardware.roofline import roofline

    cells = cells_of(rows)
    known = works.known(results, (cell.settings for _, cell in cells))
    return roofline(cells, known, peaks_of(results, about))


def cells_of(rows: Iterable[Row]) -> list[tuple[str, Any]]:
    """Return every cell of a table with its row's title."""
    return [(row.title, cell) for row in rows for cell in row.cells.values()]


def peaks_of(results: Path, about: Mapping[str, Any]) -> Peaks | None:
    """Return the stored peaks of the machine and versions of a run, or None. Raises `StoreFailure`.

    Those of a GPU include the peaks that other images, with other backends, measured on the same GPU.
    """
    name = fingerprint_of(about)
    own = peak_files.read(results, name) if name else None
    return with_other_images(results, own) if own else None


def with_other_images(results: Path, own: Peaks) -> Peaks:
    """Return the peaks with those that other images measured on the same GPU and stored in this results folder."""
    from keras_matrix.analysis.hardware.gpu_peaks import backends, merged

    return merged(own, peak_files.read_others(results, own.fingerprint)) if backends(own) else own


def fingerprint_of(about: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the machine and versions in a `run.json`, or None."""
    versions = about.get("versions")
    try:
        machine = decode(Machine, about.get("machine"), "machine")
    except CodecError:
        return None
    return peak_files.fingerprint(machine, versions) if isinstance(versions, dict) else None


def threads_of(cells: Iterable[tuple[str, Any]]) -> tuple[int, ...]:
    """Return the numbers of CPUs that a run's measured cells could use."""
    from keras_matrix.analysis.hardware.roofline import place_of

    places = (place_of(cell) for _, cell in cells)
    return tuple(sorted({place.threads for place in places if place and place.device == "cpu"}))
