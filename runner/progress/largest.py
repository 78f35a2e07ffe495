"""The results of a search for the largest batch that fits, as text."""

from __future__ import annotations

from collections.abc import Collection

from keras_matrix.records.text import bytes_text
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.plan.largest_batch import LargestCell, LargestFound, Try


def lines(largest: LargestFound, printed: Collection[str] = ()) -> list[str]:
    """Return a heading, and a line with the result of each cell."""
    by_cell = {one.planned: one for one in largest.found}
    earlier = ", as found by the run that is continued" if largest.by_earlier_start else ""
    heading = f"largest batch that fits{earlier}:"
    return [heading, *(line(cell_name(cell), by_cell[cell.cell_id], printed) for cell in largest.cells)]


def line(name: str, found: LargestCell, printed: Collection[str] = ()) -> str:
    """Return the result of a cell as text; of a problem that was printed in full, only the name."""
    if found.stopped:
        status, _, reason = found.stopped.partition(": ")
        stopped = f"{status}: {reason.partition(':')[0]}" if reason in printed else found.stopped
        return f"{name}  stopped at batch {found.batch_size}: {stopped}"
    if found.largest is None:
        return f"{name}  batch 1 does not fit; use fewer samples, a smaller model or more memory"
    beyond = found.smallest_too_large or "none tried"
    memory = bytes_text(found.peak_memory_bytes)
    return f"{name}  fits {found.largest}  too large {beyond}  peak memory {memory}  tries {found.tries}"


def cell_name(cell: Cell) -> str:
    """Return the backend and the cell, without its batch size, which is searched."""
    return f"{cell.settings.backend:<10}  {_cell_text(cell)}"


def tried_line(cell: Cell, tried: Try) -> str:
    """Return how a try of a batch size ended."""
    ended = f"fits, peak memory {bytes_text(tried.peak_memory_bytes)}" if tried.fits else f"{tried.status}"
    return f"trying {cell.settings.backend} {_cell_text(cell)} batch {tried.batch_size}: {ended}"


def _cell_text(cell: Cell) -> str:
    return settings_text(cell.settings, without=("batch_size",))
