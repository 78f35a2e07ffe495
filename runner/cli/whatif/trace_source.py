"""Finds what a command names: a trace (files, a folder of them, or a cell of a stored run), and a cost model for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.records.instruments.peaks import Peaks
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.store import Results, Run, latest_attempts
from keras_matrix.records.traces.request import TraceError
from keras_matrix.runner.checks.roofline import peaks_of
from keras_matrix.runner.cli.render.display import passed_over
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.stored import chosen_run
from keras_matrix.runner.whatif import cost_data, cost_file, links
from keras_matrix.runner.whatif.cost_file import Applied
from keras_matrix.runner.whatif.prediction import without_profiler
from keras_matrix.runner.whatif.source import ENDINGS, OPERATIONS, SEGMENTS, TraceFiles, files_of, graph_of

AGAIN = "record it again"
HELP = (
    "a cell of a stored run that has a trace, or the files of a profiler, one per worker (*.json, *.json.gz, "
    "*.xplane.pb), a folder of them, or a stored graph (*.parquet)"
)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name what is known besides the trace: `loaded` and `cost_model` take them."""
    link = "times of collectives, to fit the link's alpha and beta; default: those stored with the trace"
    parser.add_argument("--calibration", type=Path, metavar="FILE", help=link)
    level = "nodes of JAX's and TensorFlow's graphs; default: segments only where operations predict steps badly"
    parser.add_argument("--level", choices=(OPERATIONS, SEGMENTS), help=level)
    model = "a cost model, for operations that no trace has: runner costmodel"
    parser.add_argument("--costmodel", type=Path, metavar="FILE", help=model)
    peaks = (
        "peaks of the trace's machine, if the cost model has not seen it; default: those of the cell's results folder"
    )
    parser.add_argument("--peaks", type=Path, metavar="FILE", help=peaks)


def found_trace(names: Sequence[str], results: Path, run: str | None = None) -> TraceFiles:
    """Return the files that these words of a command line name. Raises `UsageError`."""
    if len(names) > 1 or names[0].endswith(ENDINGS) or Path(names[0]).exists():
        try:
            return TraceFiles(tuple(files_of([Path(name) for name in names])))
        except GraphError as error:
            raise UsageError(f"TRACE: {error}") from error
    return _of_cell(names[0], results, run)


def loaded(trace: TraceFiles, calibration: Path | None = None, level: str | None = None) -> Graph:
    """Return the graph of a trace, with the calibration of its link in a file, if one is given.

    Raises `UsageError`, for a stored cell `InfrastructureError`.
    """
    settings = trace.record.settings if trace.record else None
    try:
        link = None if calibration is None else links.of_file(calibration, settings)
    except GraphError as error:
        raise UsageError(f"--calibration: {error}") from error
    with _readable(trace):
        return graph_of(trace, link, level)


def unprofiled(trace: TraceFiles, graph: Graph) -> Graph:
    """Return the graph without what the profiler added. Raises `UsageError` or `InfrastructureError` as `loaded`."""
    with _readable(trace):
        return without_profiler(graph, trace)


@contextmanager
def _readable(trace: TraceFiles) -> Iterator[None]:
    """Turn the errors of a trace into one that says what to do."""
    try:
        yield
    except (GraphError, TraceError, OSError) as error:
        if trace.record is None:
            raise UsageError(f"TRACE: {error}") from error
        advice = "" if AGAIN in str(error) else f"; {AGAIN}"
        command = f"runner trace {trace.record.cell_id} --new"
        raise InfrastructureError(f"{error}{advice} with: {command}") from error


def cost_model(args: argparse.Namespace, trace: TraceFiles, graph: Graph) -> Applied | None:
    """Return the cost model for the device of a trace; None without one. Raises `UsageError`."""
    if args.costmodel is None:
        if args.peaks is not None:
            raise UsageError("--peaks: is for a --costmodel, which predicts a device by its peaks; name one too")
        return None
    peaks = cost_data.peaks_from(args.peaks) if args.peaks else _stored_peaks(args.results, trace.record)
    return cost_file.applied(args.costmodel, graph.header, peaks)


def _stored_peaks(results: Path, record: Record | None) -> Peaks | None:
    """Return the peaks of the machine that ran a cell, None if they were not measured."""
    return peaks_of(results, chosen_run(results, record.run_id).about()) if record else None


def _of_cell(name: str, results: Path, run: str | None) -> TraceFiles:
    """Return the files of the newest trace of a cell."""
    runs = [chosen_run(results, run)] if run else Results(results).runs()
    exit_code = 0
    for one in reversed(runs):
        records, problems = one.load()
        exit_code |= passed_over(one, problems)
        traced = _traced(one, records)
        settings = {cell: record.settings for cell, (record, _) in traced.items()}
        if cells.matching(name, settings):
            record, folder = traced[cells.one_of(name, settings, one.run_id)]
            try:
                return TraceFiles(tuple(files_of([folder])), record, _step_times_s(records, record.cell_id), exit_code)
            except GraphError as error:
                raise InfrastructureError(
                    f"{error}; record it again with: runner trace {record.cell_id} --new"
                ) from error
    where = f"run {runs[0].run_id}" if run else f"{results}"
    raise UsageError(
        f"TRACE: {where} contains no trace of a cell {name!r}, and there is no such file; record one with: "
        f"runner trace {name}"
    )


def _traced(run: Run, records: Sequence[Record]) -> dict[str, tuple[Record, Path]]:
    """Return the records of a run that have a trace, each with the trace's folder, by cell."""
    found = {}
    for record in records:
        folder = record.trace.folder if record.trace else None
        if folder and run.inside(folder):
            found[record.cell_id] = record, run.folder / folder
    return found


def _step_times_s(records: Sequence[Record], cell: str) -> tuple[float, ...]:
    """Return the step time of each measured process of a cell."""
    own = [record for record in latest_attempts(records) if record.cell_id == cell and record.status in MEASURED]
    return tuple(record.times.step_time_s for record in own if record.times.step_time_s is not None)
