"""Searches for the largest batch that fits, for `runner fit-batch` and for cells with `batch_size: largest`.

Each try is a process of its own, and a run in the folder `fit-batch` of the results folder, so that no report, history
or upload takes it for a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.store import Results, StoreFailure, latest_attempts
from keras_matrix.runner.host import machine
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.measuring import Display, measure_session, session_request
from keras_matrix.runner.plan.adaptive import Goal
from keras_matrix.runner.plan.largest_batch import Try, search
from keras_matrix.runner.plan.largest_cells import KEY, Found, about, check_limit, found_of, kept, resolved, trial
from keras_matrix.runner.plan.session import SessionRequest, resume, writing
from keras_matrix.runner.request import RunRequest

FOLDER = "fit-batch"


@dataclass(frozen=True, slots=True)
class LargestFound:
    """What was found for the cells with `batch_size: largest`, by this start or by an earlier one that it continues."""

    cells: Sequence[Cell]
    found: Sequence[Found]
    by_earlier_start: bool


def find(request: RunRequest, cell: Cell, display: Display) -> Found:
    """Search the largest batch of one cell."""
    return found_of(cell, search(lambda size: _try(request, cell, size, display)))


def with_largest(
    request: RunRequest, asked: SessionRequest, display: Display
) -> tuple[SessionRequest, LargestFound | None]:
    """Return the request with a number in place of each `batch_size: largest`, and how these were found."""
    cells = [cell for cell in asked.cells if cell.uses_largest_batch]
    if not cells:
        return asked, None
    check_limit(cells, request.memory_bytes, "batch_size: largest")
    with writing(request.results) as results:
        earlier = None if request.new else _of_earlier_start(request, results, asked)
        found = earlier or [find(request, cell, display) for cell in cells]
    return _numbered(request, asked, found), LargestFound(cells, found, earlier is not None)


def _numbered(request: RunRequest, asked: SessionRequest, found: Sequence[Found]) -> SessionRequest:
    cells = resolved(asked.cells, found)
    return replace(asked, cells=cells, about={**asked.about, KEY: about(found, request.memory_bytes)})


def _of_earlier_start(request: RunRequest, results: Results, asked: SessionRequest) -> list[Found] | None:
    """Return what the run found that this command is going to continue; None where it continues none."""
    for run in reversed(results.runs()):
        try:
            found = kept(run.about(), asked.cells, request.memory_bytes)
        except StoreFailure:
            continue  # `resume` reports it
        if found and resume(results, _numbered(request, asked, found), machine.detect(), say=lambda text: None):
            return found
    return None


def _try(request: RunRequest, cell: Cell, size: int, display: Display) -> Try:
    """Train one batch size for a few steps in a process of its own."""
    record = _measured(request, trial(cell, size), display)
    memory = record.memory
    peak = memory.peak_host_memory_bytes if cell.settings.device == "cpu" else memory.peak_device_memory_bytes
    tried = Try(size, record.status, record.reason, peak)
    display.tried(cell, tried)
    return tried


def _measured(request: RunRequest, cell: Cell, display: Display) -> Record:
    text = json.dumps({"settings": to_json(cell.settings)}, indent=1)
    own = replace(request, results=request.results / FOLDER, new=True, log_dir=None)
    asked = session_request(own, [cell], {"matrix_path": "a try of a batch size", "matrix_text": text})
    store = measure_session(own, asked, Goal(None), display.of_a_try()).runs[""]
    store.clear_leftovers()
    (record,) = latest_attempts(store.load()[0])
    return record
