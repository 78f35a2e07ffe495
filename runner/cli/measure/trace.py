"""Record a trace of one cell, or show where the time of a stored trace was spent.

CELL is a cell of the matrix or of a stored run. If the newest run with such a cell has its trace, it is shown;
otherwise, and with --new, --steps or --epochs, one is recorded: the cell is measured once, and traced afterwards. CELL
can also be a file of a profiler, *.xplane.pb of JAX or TensorFlow, *.json or *.json.gz of PyTorch, or a neutral trace,
packed or plain. docs/traces.md"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.records.codec import to_json
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import FIT
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import printable
from keras_matrix.records.traces import conversion
from keras_matrix.records.traces.neutral import plain
from keras_matrix.records.traces.request import TRACE_NAME, Trace, TraceError, untraceable
from keras_matrix.records.traces.table import Table
from keras_matrix.runner.cli.measure.run import finished
from keras_matrix.runner.cli.options import add_measuring_options, check_output, check_range, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay, passed_over
from keras_matrix.runner.cli.render.format import document
from keras_matrix.runner.cli.render.trace_text import heading, start_lines, table_lines
from keras_matrix.runner.errors import InfrastructureError, UsageError
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.matrix.trace_rules import request_problem
from keras_matrix.runner.measure.experiment import Experiment, measured
from keras_matrix.runner.measure.request import MATRIX, RunRequest
from keras_matrix.runner.measure.traces import stored_traces, table_of
from keras_matrix.runner.plan.largest_cells import refuse
from keras_matrix.runner.service import cells
from keras_matrix.runner.service.named_cells import named_cells, searched
from keras_matrix.runner.service.stored import chosen_run

TOP = 20
FILE_ENDINGS = (".xplane.pb", ".json", ".json.gz", ".ctf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=f"{cells.HELP}; or a file of a trace")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix with the cell; default: matrix.yaml")
    parser.add_argument("--run", metavar="RUN", help="show the trace of this run")
    epochs = "which epochs after the measured ones, from 1; default: 2"
    parser.add_argument("--epochs", type=int, nargs="+", metavar="N", help=epochs)
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each epoch; default: 5")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"lines of each table; default: {TOP}")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the neutral trace here; .gz packs it")
    page = "also write a page with the timeline of one step and the tables here"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Find or record the trace; show it."""
    check_range("--top", args.top, 1)
    if args.to is not None:
        check_output("--to", args.to)
    if args.html is not None:
        check_output("--html", args.html)
    output = _Output(args.top, args.to, args.html, args.json)
    if args.cell.endswith(FILE_ENDINGS):
        return _of_file(Path(args.cell), output)
    wanted = _wanted(args.epochs, args.steps)
    request = run_request(args)
    found = None if args.new or args.steps or args.epochs else _stored(request.results, args.cell, args.run)
    if found:
        return _show(found, output) or found.exit_code
    in_matrix = args.matrix is not None or MATRIX.is_file()
    return _recorded(request, replace(_cell(request, args.cell, in_matrix=in_matrix), trace=wanted), output)


@dataclass(frozen=True, slots=True)
class _Output:
    """How a trace is shown: the lines of each table, the files of a copy and of a page, and whether as JSON."""

    top: int
    copy: Path | None
    page: Path | None
    as_json: bool


# A stored trace.


@dataclass(frozen=True, slots=True)
class _Found:
    """A record that has a trace, and its run."""

    run: Run
    record: Record
    path: Path
    exit_code: int = 0  # 1 if files that cannot be read may have had a newer trace


def _stored(results: Path, name: str, run: str | None) -> _Found | None:
    """Return the newest trace of the cell, or None. Raises `UsageError` if `run` is given and has no trace of it."""
    runs = [chosen_run(results, run)] if run else Results(results).runs()
    exit_code = 0
    for one in reversed(runs):
        records, problems = one.load()
        traces = {found.record.cell_id: found for found in _traces(one, records)}
        exit_code |= passed_over(one, problems)
        there = {cell: found.record.settings for cell, found in traces.items()}
        if cells.matching(name, there):
            return replace(traces[cells.one_of(name, there, one.run_id)], exit_code=exit_code)
        if run:
            names = ", ".join(sorted({f"{own.backend}:{own.workload}" for own in there.values()})) or "none"
            raise UsageError(
                f"--run: {one.run_id} contains no trace of {name!r} (traces there: {names}); record one with: "
                f"runner trace {name} --new"
            )
    return None


def _traces(run: Run, records: Sequence[Record]) -> Iterator[_Found]:
    for record, path in stored_traces(run, records):
        yield _Found(run, record, path)


# A new one.


def _wanted(epochs: list[int] | None, steps: int | None) -> Trace:
    """Return the requested epochs and steps. Raises `UsageError`."""
    usual = Trace()
    wanted = replace(usual, epochs=epochs or usual.epochs, steps=usual.steps if steps is None else steps)
    if problem := request_problem(wanted):
        raise UsageError(f"--{problem}")
    return wanted


def _recorded(request: RunRequest, cell: Cell, output: _Output) -> int:
    text = json.dumps({"settings": to_json(cell.settings), "trace": to_json(cell.trace)}, indent=1)
    about = {"matrix_path": "runner trace", "matrix_text": text}
    done = finished(measured(request, Experiment([cell], about), TerminalDisplay(output.as_json)))
    for found in _traces(done.run, done.run.load()[0]):
        if found.record in done.latest:
            return _show(found, output) or done.exit_code
    for record in done.latest:
        _say_why(record, as_json=output.as_json)
    return done.exit_code or 1  # a measurement without a trace is a failure


def _say_why(record: Record, *, as_json: bool) -> None:
    """Print why there is no trace."""
    why = record.trace.problem if record.trace else f"{record.status}: {record.reason}"
    if as_json:
        print(document({"run": record.run_id, "cell_id": record.cell_id, "trace": None, "problem": why}))
    else:
        print(printable(f"no trace of {record.settings.backend} {settings_text(record.settings)}: {why}"))


def _cell(request: RunRequest, name: str, *, in_matrix: bool) -> Cell:
    """Return the named cell, of the matrix if it is there, else of a stored run. Raises `UsageError`."""
    there = named_cells(request, name, in_matrix=in_matrix)
    settings = {cell_id: cell.settings for cell_id, cell in there.items()}
    matrix = request.choice.matrix
    if not there:
        raise UsageError(f"CELL: there is no {matrix} and {request.results} contains no run; name a --matrix")
    found = there[cells.one_of(name, settings, searched(matrix))]
    if found.task is not None:
        raise UsageError(f"CELL: {name!r} is an external command; run it under a profiler with wrap: docs/tasks.md")
    if problem := untraceable(found.settings.implementation):
        raise UsageError(f"CELL: {found.settings.backend} {settings_text(found.settings)}: {problem}")
    refuse([found])
    return replace(found, repeats=1, precision_target=None)


# Showing.


def _show(found: _Found, output: _Output) -> int:
    try:
        table = table_of(found.path)
        _write_to(output.copy, found.path)
        title = f"{found.record.settings.backend} {settings_text(found.record.settings)}"
        _write_page(output.page, title, table, found.path)
    except TraceError as error:
        raise InfrastructureError(str(error)) from error
    record, path = found.record, str(found.path)
    if output.as_json:
        fields = {"run": found.run.run_id, "cell_id": record.cell_id, "trace": path, "table": to_json(table)}
        print(document(fields))
        return 0
    settings = record.settings
    title = f"{settings.backend} {settings_text(settings)}, cell {record.cell_id} of run {found.run.run_id}"
    lines = [title, *heading(table, _call_time_s(record)), *start_lines(record), *table_lines(table, output.top)]
    print("\n".join([*map(printable, lines), f"trace: {path}   https://ui.perfetto.dev opens it"]))
    return 0


def _call_time_s(record: Record) -> float | None:
    """Return the measured time of a traced step, which is a call of the backend."""
    step_time_s, settings = record.times.step_time_s, record.settings
    if step_time_s is None or settings.phase != FIT:
        return step_time_s
    return step_time_s * settings.steps_per_execution


def _of_file(path: Path, output: _Output) -> int:
    """Show a file of a profiler, or a neutral trace."""
    if not path.is_file():
        raise UsageError(f"CELL: there is no file {path}")
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        made = Path(folder) / TRACE_NAME
        try:
            conversion.make_of(path, made)
            table = table_of(made)
        except TraceError as error:
            raise UsageError(str(error)) from error
        _write_to(output.copy, made)
        _write_page(output.page, path.name, table, made)
    if output.as_json:
        print(document({"file": str(path), "table": to_json(table)}))
    else:
        print("\n".join(map(printable, [str(path), *heading(table, None), *table_lines(table, output.top)])))
    return 0


def _write_page(page: Path | None, title: str, table: Table, path: Path) -> None:
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


def _write_to(copy: Path | None, path: Path) -> None:
    if copy is None:
        return
    try:
        if copy.suffix == ".gz":
            shutil.copyfile(path, copy)
        else:
            plain(path, copy)
    except OSError as error:
        raise InfrastructureError(f"--to: {copy}: cannot be written: {error.strerror or error}") from error
