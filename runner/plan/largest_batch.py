"""Searches the largest batch that fits a device's memory, by doubling, then bisection, with a process per try; and puts
the number in place of `batch_size: largest`. Pure.

The result is exact to an eighth of the largest power of two that fits: allocators round, and batch sizes are rarely
chosen more finely. A run stores its numbers in `run.json`, so that a continued run has the same. If no batch fits, the
cell is measured with a batch of 1, and if a try ended for a reason other than memory, with the batch of that try, so
that its records contain the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keras_matrix.records.codec import CodecError, decode, to_json
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.runner.errors import UsageError

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.reader import Cell

KEY = "largest_batch"
TRY_STEPS = 2  # calls of the backend in an epoch of a try
TRY_EPOCHS = 2
FULL_PASS = 10_000_000  # steps; the process limits them to one pass over its samples
MOST = 1_000_000  # as the grammar of a matrix allows
PARTS = 8
TOO_LARGE = frozenset({Status.OOM_DEVICE, Status.OOM_HOST})


@dataclass(frozen=True, slots=True)
class LargestCell:
    """The search result of a planned cell: `batch_size` is measured; `largest` is None if no batch fits."""

    planned: str
    batch_size: int
    largest: int | None
    smallest_too_large: int | None
    peak_memory_bytes: int | None
    tries: int
    stopped: str | None = None


def found_of(cell: Cell, search: BatchSearch) -> LargestCell:
    """Return the search result of a planned cell."""
    largest_try, stopped_try = search.largest, search.stopped
    return LargestCell(
        planned=cell.cell_id,
        batch_size=(stopped_try or largest_try).batch_size if stopped_try or largest_try else 1,  # type: ignore[union-attr]
        largest=largest_try.batch_size if largest_try and not stopped_try else None,
        smallest_too_large=search.smallest_too_large.batch_size if search.smallest_too_large else None,
        peak_memory_bytes=largest_try.peak_memory_bytes if largest_try and not stopped_try else None,
        tries=search.tries,
        stopped=f"{stopped_try.status}: {stopped_try.reason}" if stopped_try else None,
    )


def check_limit(cells: Sequence[Cell], memory_bytes: int | None, subject: str) -> None:
    """Refuse a search on a CPU without a memory limit. Raises `UsageError`."""
    if memory_bytes is None and any(cell.settings.device == "cpu" for cell in cells):
        raise UsageError(
            f"{subject}: on a CPU the search needs a limit, got none; add --executor docker --memory 8g, or "
            "choose a GPU with --set device=gpu"
        )


def refuse(cells: Sequence[Cell]) -> None:
    """Refuse `batch_size: largest` for a command that needs a number. Raises `UsageError`."""
    if any(cell.uses_largest_batch for cell in cells):
        raise UsageError(
            "batch_size: must be a whole number for this command, got largest; find the number with runner fit-batch "
            "and set it with --set batch_size=NUMBER"
        )


def trial(cell: Cell, batch_size: int) -> Cell:
    """Return the cell of a try: few steps at a batch size, with as many batches in memory as a measured cell."""
    steps = TRY_STEPS * cell.settings.steps_per_execution
    full = cell.settings.steps_per_epoch
    in_memory = full if isinstance(full, int) else FULL_PASS
    try_settings = replace(cell.settings, batch_size=batch_size, steps_per_epoch=steps, epochs=TRY_EPOCHS, discard=1)
    try_cell = replace(cell, repeats=1, precision_target=None, trace=None, steps_held=in_memory)
    return replace(try_cell, settings=try_settings, cell_id=cell_id(try_settings))


def resolved(cells: Sequence[Cell], largest_cells: Sequence[LargestCell]) -> list[Cell]:
    """Return the cells with the numbers that were found; of cells that become equal the first remains."""
    batch_by_cell = {largest_cell.planned: largest_cell.batch_size for largest_cell in largest_cells}
    numbered = [_at(cell, batch_by_cell[cell.cell_id]) if cell.uses_largest_batch else cell for cell in cells]
    return list({cell.cell_id: cell for cell in reversed(numbered)}.values())[::-1]


def _at(cell: Cell, batch_size: int) -> Cell:
    settings = replace(cell.settings, batch_size=batch_size)
    return replace(cell, settings=settings, cell_id=cell_id(settings))


def about(largest_cells: Sequence[LargestCell], memory_bytes: int | None) -> dict[str, Any]:
    """Return the search results in the form stored in `run.json`."""
    return {"memory_bytes": memory_bytes, "cells": to_json(list(largest_cells))}


def stored_results(
    about_run: Mapping[str, Any], cells: Sequence[Cell], memory_bytes: int | None
) -> list[LargestCell] | None:
    """Return the search results in the `run.json` of an earlier start; None if they cannot replace a search.

    That is the case if a cell is missing, the memory limit was different, or infrastructure stopped a search.
    """
    stored_document = about_run.get(KEY)
    if not isinstance(stored_document, dict) or stored_document.get("memory_bytes") != memory_bytes:
        return None
    try:
        largest_cells = decode(list[LargestCell], stored_document.get("cells"), KEY)
    except CodecError:
        return None
    is_complete = {largest_cell.planned for largest_cell in largest_cells} == {
        cell.cell_id for cell in cells if cell.uses_largest_batch
    }
    has_failed = any((largest_cell.stopped or "").startswith(f"{Status.INFRA}:") for largest_cell in largest_cells)
    return largest_cells if is_complete and not has_failed else None


@dataclass(frozen=True, slots=True)
class LargestFound:
    """The search results of the cells with `batch_size: largest`, from this start or the earlier one it continues."""

    cells: Sequence[Cell]
    found: Sequence[LargestCell]
    by_earlier_start: bool


@dataclass(frozen=True, slots=True)
class Try:
    """A process at a batch size with the result in its record; bytes are None if they were not measured."""

    batch_size: int
    status: Status
    reason: str | None = None
    peak_memory_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Return whether the process trained to its end."""
        return self.status in MEASURED or self.status is Status.DIVERGED


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """The result of a search. `stopped` is a try that ended for a reason other than memory; it invalidates the rest."""

    largest: Try | None
    smallest_too_large: Try | None
    tries: int
    stopped: Try | None = None


def search(attempt: Callable[[int], Try], most: int = MOST) -> BatchSearch:
    """Return the largest batch size up to `most` that fits, using `attempt` to try a size."""
    fits: Try | None = None
    too_large: Try | None = None
    tries = 0
    while (next_size := _next_size(fits, too_large, most)) is not None:
        batch_try, tries = attempt(next_size), tries + 1
        if batch_try.fits:
            fits = batch_try
        elif batch_try.status in TOO_LARGE:
            too_large = batch_try
        else:
            return BatchSearch(fits, too_large, tries, batch_try)
    return BatchSearch(fits, too_large, tries)


def _next_size(fitting_try: Try | None, too_large: Try | None, most: int) -> int | None:
    """Return the batch size to try next, or None when the result is known."""
    if fitting_try is None:
        return None if too_large else 1
    low = fitting_try.batch_size
    if too_large is None:
        return min(2 * low, most) if low < most else None
    step = max(1, (1 << low.bit_length() - 1) // PARTS)
    gap = too_large.batch_size - low
    return low + gap // step // 2 * step if gap >= 2 * step else None
