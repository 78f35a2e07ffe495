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

from runner.cli import cells
from runner.cli.options import add_measuring_options, check_output, chosen_of
from runner.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from records.schema import Record
    from records.settings import Settings
    from records.store import Run
    from records.traces.asked import Trace
    from records.traces.table import Table
    from runner.matrix import Cell

NAME = "trace"
HELP = "record a trace of one cell, or show where its time went"
MATRIX = Path("matrix.yaml")
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
    if args.cell.endswith(FILE_ENDINGS):
        return _of_file(args, Path(args.cell))
    wanted = _wanted(args)
    found = None if args.new or args.steps or args.epochs else _stored(args)
    return _shown(args, found) if found else _recorded(args, wanted)


# A stored trace.


@dataclass(frozen=True, slots=True)
class _Found:
    """A record that has a trace, and its run."""

    run: Run
    record: Record
    path: Path


def _stored(args: argparse.Namespace) -> _Found | None:
    """Return the newest trace of the cell, None where there is none. Raises `UsageError` where `--run` has none."""
    from records.store import Results
    from runner.cli.stored import chosen_run

    runs = [chosen_run(args)] if args.run else Results(args.results).runs()
    for one in reversed(runs):
        traces = {found.record.cell_id: found for found in _traces(one)}
        there = {cell: found.record.settings for cell, found in traces.items()}
        if names := cells.matching(args.cell, there):
            return traces[cells.one_of(args.cell, there, one.run_id) if len(names) > 1 else names[0]]
        if args.run:
            _no_trace(args, one, there)
    return None


def _traces(run: Run) -> Iterator[_Found]:
    from runner.traces import kept_in

    for record, path in kept_in(run, run.load()[0]):
        yield _Found(run, record, path)


def _no_trace(args: argparse.Namespace, run: Run, there: dict[str, Settings]) -> NoReturn:
    names = ", ".join(sorted({f"{one.backend}:{one.workload}" for one in there.values()})) or "none"
    raise UsageError(
        f"--run: {run.run_id} holds no trace of {args.cell!r} (traces there: {names}); record one with: "
        f"runner trace {args.cell} --new"
    )


# A new one.


def _wanted(args: argparse.Namespace) -> Trace:
    """Return what the flags ask to be traced. Raises `UsageError`."""
    from records.traces.asked import Trace
    from runner.trace_rules import fault

    asked = Trace()
    asked = replace(asked, epochs=args.epochs or asked.epochs, steps=asked.steps if args.steps is None else args.steps)
    if told := fault(asked):
        raise UsageError(f"--{told}")
    return asked


def _recorded(args: argparse.Namespace, wanted: Trace) -> int:
    from records.store import Results, latest_attempts
    from runner.adaptive import Goal
    from runner.cli.run import exit_code, measure_session, own_arm, started
    from runner.cli.stored import write_report
    from runner.largest_cells import refuse
    from runner.session import Request
    from runner.stopping import stopping

    cell = replace(_cell(args), repeats=1, precision_target=None, trace=wanted)
    refuse([cell])
    args.matrix = args.matrix or MATRIX
    arms = {"": own_arm(args, [cell])}
    about = {"command": ["runner", *args.given], "matrix_path": "runner trace", "matrix_text": _text(cell)}
    asked = Request([cell], arms, started(args), args.order_seed, about, stopping([cell], to_decide=False))
    session = measure_session(args, Results(args.results), asked, Goal(None))
    store = session.runs[""]
    store.clear_leftovers()
    latest = latest_attempts(write_report(store, store.folder / "report.html").records)
    code = exit_code(latest, len(session.steps) - len(latest))
    for found in _traces(store):
        if found.record in latest:
            return _shown(args, found) or code
    for record in latest:
        _tell(args, record)
    return code or 1  # what was measured without a trace is not what was asked for


def _tell(args: argparse.Namespace, record: Record) -> None:
    """Say why there is no trace."""
    from runner.cli.format import asked
    from runner.executors.output import printable

    why = record.trace.problem if record.trace else f"{record.status}: {record.reason}"
    if args.json:
        about = {"run": record.run_id, "cell_id": record.cell_id, "trace": None, "problem": why}
        print(json.dumps({"version": 1, **about}, indent=1))
    else:
        print(printable(f"no trace of {record.settings.backend} {asked(record.settings)}: {why}"))


def _cell(args: argparse.Namespace) -> Cell:
    """Return the cell that is named, of the matrix or of a stored run. Raises `UsageError`."""
    there = _cells(args)
    settings = {cell_id: cell.settings for cell_id, cell in there.items()}
    where = f"{args.matrix or MATRIX} or a stored run"
    if not there:
        raise UsageError(f"CELL: there is no {args.matrix or MATRIX} and {args.results} holds no run; name a --matrix")
    found = there[cells.one_of(args.cell, settings, where)]
    if found.task is not None:
        raise UsageError(
            f"CELL: {args.cell!r} is an external command; put a profiler round it with wrap: docs/tasks.md"
        )
    return found


def _cells(args: argparse.Namespace) -> dict[str, Cell]:
    """Return the cells of the matrix or, without one, of the stored runs, the newest first."""
    from records.identity import cell_id
    from records.store import Results
    from records.task import PREFIX
    from runner.grammar import LIMITS
    from runner.matrix import Cell, load
    from runner.overrides import Overrides

    found: dict[str, Cell] = {}
    if args.matrix is not None or MATRIX.is_file():
        matrix = load(args.matrix or MATRIX)
        found = {cell.cell_id: cell for cell in chosen_of(args, matrix, Overrides())[1]}
    if cells.matching(args.cell, {name: cell.settings for name, cell in found.items()}):
        return found
    timeout_s = float(LIMITS["timeout_s"].default or 0)
    for one in reversed(Results(args.results).runs()):
        records = [record for record in one.load()[0] if not record.settings.workload.startswith(PREFIX)]
        there = {cell_id(r.settings): r.settings for r in records if not args.service or args.service.runs(r.settings)}
        found |= {name: Cell(own, name, 1, timeout_s, None) for name, own in there.items() if name not in found}
        if cells.matching(args.cell, there):
            return found
    return found


def _text(cell: Cell) -> str:
    from records.codec import to_json

    return json.dumps({"settings": to_json(cell.settings), "trace": to_json(cell.trace)}, indent=1)


# Showing.


def _shown(args: argparse.Namespace, found: _Found) -> int:
    from records.traces.asked import TraceError
    from runner.cli.format import asked
    from runner.cli.trace_text import heading, table_lines
    from runner.executors.output import printable
    from runner.traces import table_of

    try:
        table = table_of(found.path)
        _write_to(args, found.path)
    except TraceError as error:
        raise InfrastructureError(str(error)) from error
    if args.json:
        document = {"run": found.run.run_id, "cell_id": found.record.cell_id, "trace": str(found.path)}
        print(_document(table, document))
        return 0
    settings = found.record.settings
    title = f"{settings.backend} {asked(settings)}, cell {found.record.cell_id} of run {found.run.run_id}"
    lines = [title, *heading(table, _call_time_s(found.record)), *table_lines(table, args.top)]
    print("\n".join([*map(printable, lines), f"trace: {found.path}   https://ui.perfetto.dev opens it"]))
    return 0


def _call_time_s(record: Record) -> float | None:
    """Return what a traced step, which is a call of the backend, took where it was measured."""
    step_time_s, settings = record.times.step_time_s, record.settings
    if step_time_s is None or settings.phase == "predict":
        return step_time_s
    return step_time_s * settings.steps_per_execution


def _of_file(args: argparse.Namespace, path: Path) -> int:
    """Show a profiler's own file, or a neutral trace."""
    import tempfile

    from records.traces import native
    from records.traces.asked import TRACE_NAME, TraceError
    from runner.cli.trace_text import heading, table_lines
    from runner.executors.output import printable
    from runner.traces import table_of

    if not path.is_file():
        raise UsageError(f"CELL: there is no file {path}")
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        made = Path(folder) / TRACE_NAME
        try:
            native.make_of(path, made)
            table = table_of(made)
        except TraceError as error:
            raise UsageError(str(error)) from error
        _write_to(args, made)
    if args.json:
        print(_document(table, {"file": str(path)}))
    else:
        print("\n".join(map(printable, [str(path), *heading(table, None), *table_lines(table, args.top)])))
    return 0


def _write_to(args: argparse.Namespace, path: Path) -> None:
    import shutil

    from records.traces.neutral import plain

    if args.to is None:
        return
    try:
        if args.to.suffix == ".gz":
            shutil.copyfile(path, args.to)
        else:
            plain(path, args.to)
    except OSError as error:
        raise InfrastructureError(f"--to: {args.to}: cannot be written: {error.strerror or error}") from error


def _document(table: Table, about: dict[str, str]) -> str:
    from records.codec import to_json

    return json.dumps({"version": 1, **about, "table": to_json(table)}, indent=1, allow_nan=False)
