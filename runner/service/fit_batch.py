"""Finds the cells whose largest batch is searched, one per backend."""

from __future__ import annotations

from keras_matrix.records.schema import Status
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.largest_batch import LargestCell, check_limit
from keras_matrix.runner.service import cells


def searched_cells(request: RunRequest, name: str) -> list[Cell]:
    """Return the cells to search, one per backend. Raises `UsageError`."""
    there = {cell.cell_id: cell for cell in request.choice.load(largest=True)[1] if cell.task is None}
    settings = {cell_id: cell.settings for cell_id, cell in there.items()}
    names = cells.matching(name, settings)
    if not names:
        cells.refuse(name, settings, str(request.choice.matrix))
    if len({settings[one].backend for one in names}) < len(names):
        cells.ask(name, names, settings)
    check_limit([there[one] for one in names], request.memory_bytes, "--memory")
    return [there[one] for one in names]


def exit_code(found: LargestCell) -> int:
    if (found.stopped or "").startswith(f"{Status.INFRA}:"):
        return 3
    return 1 if found.largest is None else 0
