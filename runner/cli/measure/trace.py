"""Record a trace of one cell, or show where the time of a stored one went.

CELL is a cell of the matrix or of a stored run. Where the newest run with such a cell has its trace, that one is shown;
otherwise, and with --new, --steps or --epochs, one is recorded: the cell is measured once, and traced after that. CELL
may also be a file: a profiler's own, *.xplane.pb of JAX or TensorFlow, *.json or *.json.gz of PyTorch, or a neutral
trace, packed or plain. docs/traces.md"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from keras_matrix.runner.cli.look import cells
from keras_matrix.runner.cli.options import MATRIX, add_measuring_options, check_output, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from keras_matrix.records.schema import Record
    from keras_matrix.records.settings import Settings
    from keras_matrix.records.store import Run
    from keras_matrix.records.traces.request import Trace
    from keras_matrix.records.traces.table import Table
    from keras_matrix.runner.matrix.reader import Cell
    from keras_matrix.runner.request import RunRequest

NAME = "trace"
HELP = "record a trace of one cell, or show where its time went"
TOP = 20
FILE_ENDINGS = (".xplane.pb", ".json", ".json.gz", ".ctf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("cell", metavar="CELL", help=f"{cells.HELP}; or a file of a trace")
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="where the cell is looked for; default: matrix.yaml"
    )
    parser.add_argument("--run", metavar="RUN", help="show the trace that this run has")
    parser.add_argument(
        "--epochs", type=int, nargs="+", metavar="N", help="which epochs after the measured ones, from 1; default: 2"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each; default: 5")
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"lines of each table; default: {TOP}")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the neutral trace here, too; .gz packs it")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_measuring_options(parser)


def run(args: argparse.Namespace) -> int:
    """Find or record the trace; show it."""
    if args.top < 1:
        raise UsageError(f"--top: must be at least 1, got {args.top}")
    if args.to is not None:
        check_output("--to", args.to)
    shown = _Shown(args.top, args.to, args.json)
    if args.cell.endswith(FILE_ENDINGS):
        return _of_file(Path(args.cell), shown)
    wanted = _wanted(args.epochs, args.steps)
    request = run_request(args)
    found = None if args.new or args.steps or args.epochs else _stored(request.results, args.cell, args.run)
    if found:
        return _show(found, shown)
    in_matrix = args.matrix is not None or MATRIX.is_file()
    return _recorded(request, replace(_cell(request, args.cell, in_matrix=in_matrix), trace=wanted), shown)


@dataclass(frozen=True, slots=True)
class _Shown:
    """How a trace is shown: how many lines of each table, where else it is written, whether as JSON."""

    top: int
    copy: Path | None
    as_json: bool


# A stored trace.


@dataclass(frozen=True, slots=True)
class _Found:
    """A record that has a trace, and its run."""

    run: Run
    record: Record
    path: Path


def _stored(results: Path, name: str, run: str | None) -> _Found | None:
    """Return the newest trace of the cell, None where there is none. Raises `UsageError` where `run` has none."""
    from keras_matrix.records.store import Results
    from keras_matrix.runner.cli.look.stored import chosen_run

    runs = [chosen_run(results, run)] if run else Results(results).runs()
    for one in reversed(runs):
        traces = {found.record.cell_id: found for found in _traces(one)}
        there = {cell: found.record.settings for cell, found in traces.items()}
        if names := cells.matching(name, there):
            return traces[cells.one_of(name, there, one.run_id) if len(names) > 1 else names[0]]
        if run:
            _no_trace(name, one, there)
    return None


def _traces(run: Run) -> Iterator[_Found]:
    from keras_matrix.runner.measure.traces import stored_traces

    for record, path in stored_traces(run, run.load()[0]):
        yield _Found(run, record, path)


def _no_trace(name: str, run: Run, there: dict[str, Settings]) -> NoReturn:
    names = ", ".join(sorted({f"{one.backend}:{one.workload}" for one in there.values()})) or "none"
    raise UsageError(
        f"--run: {run.run_id} holds no trace of {name!r} (traces there: {names}); record one with: "
        f"runner trace {name} --new"
    )


# A new one.


def _wanted(epochs: list[int] | None, steps: int | None) -> Trace:
    """Return what is to be traced. Raises `UsageError`."""
    from keras_matrix.records.traces.request import Trace
    from keras_matrix.runner.matrix.trace_rules import request_problem

    usual = Trace()
    wanted = replace(usual, epochs=epochs or usual.epochs, steps=usual.steps if steps is None else steps)
    if problem := request_problem(wanted):
        raise UsageError(f"--{problem}")
    return wanted


def _recorded(request: RunRequest, cell: Cell, shown: _Shown) -> int:
    from keras_matrix.records.store import latest_attempts
    from keras_matrix.runner.cli.look.stored import write_report
    from keras_matrix.runner.cli.measure.run import exit_code
    from keras_matrix.runner.measure.measuring import measure_session, session_request
    from keras_matrix.runner.plan.adaptive import Goal

    about = {"matrix_path": "runner trace", "matrix_text": _text(cell)}
    asked = session_request(request, [cell], about)
    session = measure_session(request, asked, Goal(None), TerminalDisplay(shown.as_json))
    store = session.runs[""]
    store.clear_leftovers()
    latest = latest_attempts(write_report(store, store.folder / "report.html").records)
    code = exit_code(latest, len(session.repeats) - len(latest))
    for found in _traces(store):
        if found.record in latest:
            return _show(found, shown) or code
    for record in latest:
        _say_why(record, as_json=shown.as_json)
    return code or 1  # what was measured without a trace is not what was asked for


def _say_why(record: Record, *, as_json: bool) -> None:
    """Say why there is no trace."""
    from keras_matrix.runner.cli.render.format import asked
    from keras_matrix.runner.executors.supervise.output import printable

    why = record.trace.problem if record.trace else f"{record.status}: {record.reason}"
    if as_json:
        about = {"run": record.run_id, "cell_id": record.cell_id, "trace": None, "problem": why}
        print(json.dumps({"version": 1, **about}, indent=1))
    else:
        print(printable(f"no trace of {record.settings.backend} {asked(record.settings)}: {why}"))


def _cell(request: RunRequest, name: str, *, in_matrix: bool) -> Cell:
    """Return the cell that is named, once, of the matrix if it is there or of a stored run. Raises `UsageError`."""
    from keras_matrix.runner.plan.largest_cells import refuse

    there = _cells(request, name, in_matrix=in_matrix)
    settings = {cell_id: cell.settings for cell_id, cell in there.items()}
    matrix = request.choice.matrix
    if not there:
        raise UsageError(f"CELL: there is no {matrix} and {request.results} holds no run; name a --matrix")
    found = there[cells.one_of(name, settings, f"{matrix} or a stored run")]
    if found.task is not None:
        raise UsageError(f"CELL: {name!r} is an external command; put a profiler round it with wrap: docs/tasks.md")
    refuse([found])
    return replace(found, repeats=1, precision_target=None)


def _cells(request: RunRequest, name: str, *, in_matrix: bool) -> dict[str, Cell]:
    """Return the cells of the matrix or, without one, of the stored runs, the newest first."""
    from keras_matrix.records.identity import cell_id
    from keras_matrix.records.store import Results
    from keras_matrix.records.task import PREFIX
    from keras_matrix.runner.matrix.grammar import LIMITS
    from keras_matrix.runner.matrix.reader import Cell

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


def _text(cell: Cell) -> str:
    from keras_matrix.records.codec import to_json

    return json.dumps({"settings": to_json(cell.settings), "trace": to_json(cell.trace)}, indent=1)


# Showing.


def _show(found: _Found, shown: _Shown) -> int:
    from keras_matrix.records.traces.request import TraceError
    from keras_matrix.runner.cli.render.format import asked
    from keras_matrix.runner.cli.render.trace_text import heading, table_lines
    from keras_matrix.runner.executors.supervise.output import printable
    from keras_matrix.runner.measure.traces import table_of

    try:
        table = table_of(found.path)
        _write_to(shown.copy, found.path)
    except TraceError as error:
        raise InfrastructureError(str(error)) from error
    if shown.as_json:
        document = {"run": found.run.run_id, "cell_id": found.record.cell_id, "trace": str(found.path)}
        print(_document(table, document))
        return 0
    settings = found.record.settings
    title = f"{settings.backend} {asked(settings)}, cell {found.record.cell_id} of run {found.run.run_id}"
    lines = [title, *heading(table, _call_time_s(found.record)), *table_lines(table, shown.top)]
    print("\n".join([*map(printable, lines), f"trace: {found.path}   https://ui.perfetto.dev opens it"]))
    return 0


def _call_time_s(record: Record) -> float | None:
    """Return what a traced step, which is a call of the backend, took where it was measured."""
    step_time_s, settings = record.times.step_time_s, record.settings
    if step_time_s is None or settings.phase == "predict":
        return step_time_s
    return step_time_s * settings.steps_per_execution


def _of_file(path: Path, shown: _Shown) -> int:
    """Show a profiler's own file, or a neutral trace."""
    import tempfile

    from keras_matrix.records.traces import conversion
    from keras_matrix.records.traces.request import TRACE_NAME, TraceError
    from keras_matrix.runner.cli.render.trace_text import heading, table_lines
    from keras_matrix.runner.executors.supervise.output import printable
    from keras_matrix.runner.measure.traces import table_of

    if not path.is_file():
        raise UsageError(f"CELL: there is no file {path}")
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        made = Path(folder) / TRACE_NAME
        try:
            conversion.make_of(path, made)
            table = table_of(made)
        except TraceError as error:
            raise UsageError(str(error)) from error
        _write_to(shown.copy, made)
    if shown.as_json:
        print(_document(table, {"file": str(path)}))
    else:
        print("\n".join(map(printable, [str(path), *heading(table, None), *table_lines(table, shown.top)])))
    return 0


def _write_to(copy: Path | None, path: Path) -> None:
    import shutil

    from keras_matrix.records.traces.neutral import plain

    if copy is None:
        return
    try:
        if copy.suffix == ".gz":
            shutil.copyfile(path, copy)
        else:
            plain(path, copy)
    except OSError as error:
        raise InfrastructureError(f"--to: {copy}: cannot be written: {error.strerror or error}") from error


def _document(table: Table, about: dict[str, str]) -> str:
    from keras_matrix.records.codec import to_json

    return json.dumps({"version": 1, **about, "table": to_json(table)}, indent=1, allow_nan=False)
