"""Searches the largest batch that fits, for `runner fit-batch` and for cells with `batch_size: largest`.

Each try has its own process and its own run in the folder `fit-batch` of the results folder, so that reports, history
and uploads do not treat it as a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.records.schema import Record, Status
from keras_matrix.records.store import Results, latest_attempts
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.runner.machine import machine
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan import largest_batch
from keras_matrix.runner.plan.largest_batch import LargestCell, LargestFound, Try, check_limit, search
from keras_matrix.runner.plan.session import resume, writing
from keras_matrix.runner.service import cells

FOLDER = "fit-batch"


def find(request: RunRequest, cell: Cell, display: Display) -> LargestCell:
    """Search the largest batch of a cell."""
    return largest_batch.found_of(cell, search(lambda batch_size: _try(request, cell, batch_size, display)))


def with_largest(request: RunRequest, experiment: Experiment, display: Display) -> Experiment:
    """Return the experiment with a number in place of each `batch_size: largest`, and show what was found."""
    cells = [cell for cell in experiment.cells if cell.uses_largest_batch]
    largest_batch.check_limit(cells, request.memory_bytes, "batch_size: largest")
    with writing(request.results) as results:
        earlier_cells = None if request.new else _of_earlier_start(request, results, experiment)
        largest_cells = earlier_cells or [find(request, cell, display) for cell in cells]
    display.largest(LargestFound(cells, largest_cells, earlier_cells is not None))
    return _numbered(request, experiment, largest_cells)


def _numbered(request: RunRequest, experiment: Experiment, largest_cells: Sequence[LargestCell]) -> Experiment:
    about = {**experiment.about, largest_batch.KEY: largest_batch.about(largest_cells, request.memory_bytes)}
    return replace(experiment, cells=largest_batch.resolved(experiment.cells, largest_cells), about=about)


def _of_earlier_start(request: RunRequest, results: Results, experiment: Experiment) -> list[LargestCell] | None:
    """Return the search results of the run that this command will continue; None if it continues no run."""
    for run in reversed(results.runs()):
        try:
            largest_cells = largest_batch.stored_results(run.about(), experiment.cells, request.memory_bytes)
        except StoreFailure:
            continue  # reported by `resume`
        if not largest_cells:
            continue
        session_request = _numbered(request, experiment, largest_cells).session(request)
        if resume(results, session_request, machine.detect(), say=lambda text: None):
            return largest_cells
    return None


def _try(request: RunRequest, cell: Cell, batch_size: int, display: Display) -> Try:
    """Train a few steps at a batch size in a separate process."""
    record = _latest(request, largest_batch.trial(cell, batch_size), display)
    memory = record.memory
    peak = memory.peak_host_memory_bytes if cell.settings.device == "cpu" else memory.peak_device_memory_bytes
    batch_try = Try(batch_size, record.status, record.reason, peak)
    display.tried(cell, batch_try)
    return batch_try


def _latest(request: RunRequest, cell: Cell, display: Display) -> Record:
    own_request = replace(request, results=request.results / FOLDER, new=True, log_dir=None)
    experiment = Experiment([cell], origin("a try of a batch size", {"settings": cell.settings}))
    store = measured(own_request, experiment, display.of_a_try()).runs[""]
    (record,) = latest_attempts(store.load()[0])
    return record


def searched_cells(request: RunRequest, name: str) -> list[Cell]:
    """Return the cells to search, one per backend. Raises `UsageError`."""
    cell_by_id = {cell.cell_id: cell for cell in request.choice.load(largest=True)[1] if cell.task is None}
    settings = {cell_id: cell.settings for cell_id, cell in cell_by_id.items()}
    names = cells.matching(name, settings)
    if not names:
        cells.refuse_cell(name, settings, str(request.choice.matrix))
    if len({settings[chosen_id].backend for chosen_id in names}) < len(names):
        cells.ask(name, names, settings)
    check_limit([cell_by_id[chosen_id] for chosen_id in names], request.memory_bytes, "--memory")
    return [cell_by_id[chosen_id] for chosen_id in names]


def exit_code(largest_cell: LargestCell) -> int:
    if (largest_cell.stopped or "").startswith(f"{Status.INFRA}:"):
        return 3
    return 1 if largest_cell.largest is None else 0
