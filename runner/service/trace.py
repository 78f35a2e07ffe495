"""Finds the stored trace of a cell, or records one, and writes copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.records.schema import Record
from keras_matrix.records.settings import FIT
from keras_matrix.records.store import Results, Run
from keras_matrix.records.traces.neutral import plain
from keras_matrix.records.traces.request import Trace, untraceable
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix.instrument_keys import request_problem
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.experiment import Display, Experiment, measured, origin
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.measure.traces import stored_traces
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.cells import chosen_cell, refuse_programs
from keras_matrix.runner.service.run import Finished, finished
from keras_matrix.runner.service.stored import chosen_run, passed_over


@dataclass(frozen=True, slots=True)
class TracedRecord:
    """A record that has a trace, and its run."""

    run: Run
    record: Record
    path: Path
    exit_code: int = 0  # 1 if files that cannot be read may have had a newer trace


def stored_trace(results: Path, name: str, run_id: str | None, display: Display) -> TracedRecord | None:
    """Return the newest trace of the cell, or None. Raises `UsageError` if `run_id` is given and has no trace of it."""
    runs = [chosen_run(results, run_id)] if run_id else Results(results).runs()
    exit_code = 0
    for candidate_run in reversed(runs):
        records, problems = candidate_run.load()
        traces = {traced.record.cell_id: traced for traced in _traces_of(candidate_run, records)}
        exit_code |= passed_over(candidate_run, problems, display)
        settings_by_cell = {cell_id: traced.record.settings for cell_id, traced in traces.items()}
        if cells.matching(name, settings_by_cell):
            return replace(traces[cells.one_of(name, settings_by_cell, candidate_run.run_id)], exit_code=exit_code)
        if run_id:
            names = (
                ", ".join(sorted({f"{settings.backend}:{settings.workload}" for settings in settings_by_cell.values()}))
                or "none"
            )
            raise UsageError(
                f"--run: {candidate_run.run_id} contains no trace of {name!r} (traces there: {names}); record one "
                f"with: runner trace {name} --new"
            )
    return None


def record_trace(request: RunRequest, cell: Cell, display: Display) -> tuple[TracedRecord | None, Finished]:
    """Measure a cell with its trace; return the trace, None without one, and the finished run."""
    about = origin("runner trace", {"settings": cell.settings, "trace": cell.trace})
    finished_run = finished(measured(request, Experiment([cell], about), display))
    traces = _traces_of(finished_run.run, finished_run.run.load()[0])
    return next((traced for traced in traces if traced.record in finished_run.latest), None), finished_run


def _traces_of(run: Run, records: Sequence[Record]) -> Iterator[TracedRecord]:
    for record, path in stored_traces(run, records):
        yield TracedRecord(run, record, path)


def requested(epochs: list[int] | None, steps: int | None) -> Trace:
    """Return the requested epochs and steps. Raises `UsageError`."""
    usual = Trace()
    trace_request = replace(usual, epochs=epochs or usual.epochs, steps=usual.steps if steps is None else steps)
    if problem := request_problem(trace_request):
        raise UsageError(f"--{problem}")
    return trace_request


def cell_to_trace(request: RunRequest, name: str) -> Cell:
    """Return the named cell, of the matrix if it is there, else of a stored run. Raises `UsageError`."""
    cell = chosen_cell(request, name, "; run it under a profiler with wrap: docs/tasks.md")
    refuse_programs([cell], "which is not traced")
    if problem := untraceable(cell.settings.implementation, cell.settings.call, cell.settings.backend):
        raise UsageError(f"CELL: {cell.settings.backend} {settings_text(cell.settings)}: {problem}")
    return replace(cell, repeats=1, precision_target=None)


def call_time_s(record: Record) -> float | None:
    """Return the measured time of a traced step, which is a call of the backend."""
    step_time_s, settings = record.times.step_time_s, record.settings
    if step_time_s is None or settings.phase != FIT:
        return step_time_s
    return step_time_s * settings.steps_per_execution


def write_page(page: Path | None, title: str, table: TraceSummary, path: Path) -> None:
    """Write the page of a trace. Raises `TraceError` or `InfrastructureError`."""
    if page is None:
        return
    from keras_matrix.dashboards.charts.trace_timeline import step_of  # with templates that no other command needs
    from keras_matrix.dashboards.report import page as report
    from keras_matrix.dashboards.report import trace_page

    try:
        report.write(page, trace_page.render(title, table, step_of(path)))
    except OSError as error:
        raise InfrastructureError(f"--html: {page}: cannot be written: {error.strerror or error}") from error


def write_copy(copy: Path | None, path: Path) -> None:
    if copy is None:
        return
    try:
        if copy.suffix == ".gz":
            shutil.copyfile(path, copy)
        else:
            plain(path, copy)
    except OSError as error:
        raise InfrastructureError(f"--to: {copy}: cannot be written: {error.strerror or error}") from error
