"""Finds the cells that a command names: in the matrix, or else in the stored runs."""

from __future__ import annotations

from keras_matrix.records.identity import cell_id
from keras_matrix.records.store import Results
from keras_matrix.records.task import PREFIX
from keras_matrix.runner.cli.look import cells
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.request import RunRequest


def named_cells(request: RunRequest, name: str, *, in_matrix: bool) -> dict[str, Cell]:
    """Return the cells of the matrix or, if it has no such cell, of the stored runs, the newest first, by id."""
    found = {cell.cell_id: cell for cell in request.choice.load(largest=True)[1]} if in_matrix else {}
    if cells.matching(name, {one: cell.settings for one, cell in found.items()}):
        return found
    timeout_s, service = float(LIMITS["timeout_s"].default or 0), request.choice.service
    for run in reversed(Results(request.results).runs()):
        records = [record for record in run.load()[0] if not record.settings.workload.startswith(PREFIX)]
        there = {cell_id(r.settings): r.settings for r in records if not service or service.runs(r.settings)}
        found |= {one: Cell(own, one, 1, timeout_s, None) for one, own in there.items() if one not in found}
        if cells.matching(name, there):
            return found
    return found
