"""Measure the cells of a matrix and show what was found.

The same command continues the newest unfinished run of the same plan: its pending cells and those that the
infrastructure spoiled. A finished one starts a new run."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli import sending
from runner.cli.options import add_matrix_options, add_measuring_options, budget_s, chosen_matrix, executors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.compare import Row
    from records.left_out import LeftOut
    from records.schema import Record
    from records.store import Results, Run
    from runner.adaptive import Goal
    from runner.campaign import Arm
    from runner.executors.interpreter import Interpreter
    from runner.matrix import Cell
    from runner.session import ArmAsked, Request, Session

NAME = "run"
HELP = "measure the cells of a matrix (the default command)"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")
    sending.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, publish, show. Returns the exit code."""
    from records.store import Results
    from runner.adaptive import Goal
    from runner.cli.largest import with_largest

    matrix, cells = chosen_matrix(args, largest=True)
    upload = sending.asked(args)
    results = Results(args.results)
    arms = {"": own_arm(args, cells)}
    asked = with_largest(args, results, request(args, cells, arms, left_out=matrix.left_out))
    session = measure_session(args, results, asked, Goal(budget_s(args, matrix)))
    code = conclude(args, session.runs[""], session)
    if upload is not None:
        sending.after_run(upload, args.results)
    return code


def measure_session(args: argparse.Namespace, results: Results, asked: Request, goal: Goal) -> Session:
    """Measure what is asked for, continuing where an earlier start left off, and return the session."""
    from records import left_out
    from runner.interrupts import interruptible
    from runner.surroundings import pinning

    if executors_of(args).contract.local_machine:
        pinning.check(cell.settings for cell in asked.cells)
    if not args.json:
        print("".join(f"{line}\n" for line in left_out.lines(left_out.read(asked.about))), end="", flush=True)
    with interruptible():
        try:
            results.open_for_writing()
            return _measure(args, results, asked, goal)
        finally:
            results.close()


def request(
    args: argparse.Namespace,
    cells: Sequence[Cell],
    arms: Mapping[str, ArmAsked],
    *,
    to_decide: bool = False,
    left_out: Sequence[LeftOut] = (),
) -> Request:
    """Return what the flags ask to be measured; `to_decide` where a gate decides when it is enough."""
    from records.codec import to_json
    from records.left_out import KEY
    from runner.session import Request
    from runner.stopping import stopping

    about = {
        "command": ["runner", *args.given],
        "matrix_path": str(args.matrix),
        "matrix_text": args.matrix.read_text(encoding="utf-8"),
        KEY: to_json(left_out),
    }
    return Request(cells, arms, started(args), args.order_seed, about, stopping(cells, to_decide=to_decide))


def started(args: argparse.Namespace) -> str:
    """Return how cells start, as a run keeps it."""
    return executors_of(args).started


def own_arm(args: argparse.Namespace, cells: Sequence[Cell], fault: str | None = None) -> ArmAsked:
    """Return an arm of the software that the executor's cells find."""
    from runner.session import ArmAsked

    return ArmAsked(None, fault, executors_of(args).software(cells))


def asked_arm(interpreter: Interpreter | None, fault: str | None) -> ArmAsked:
    """Return an arm of this Python, or of another."""
    from runner.executors.interpreter import installed_versions
    from runner.session import ArmAsked

    versions = interpreter.versions() if interpreter else installed_versions()
    return ArmAsked(interpreter.python if interpreter else None, fault, versions)


def _measure(args: argparse.Namespace, results: Results, asked: Request, goal: Goal) -> Session:
    from runner import machine
    from runner.adaptive import Adaptive
    from runner.campaign import Workshop, measure, utc_now
    from runner.cli import options, preflight
    from runner.cli.plan import estimates
    from runner.cli.progress import progress
    from runner.session import begin, resume

    log_dir = options.log_dir(args)
    executors_of(args).end_leftovers(args.results)
    here = machine.detect()
    session = None if args.new else resume(results, asked, here)
    if session and not args.json:
        print(f"continuing {', '.join(str(run.folder) for run in session.runs.values())}")
    session = session or begin(results, asked, here, utc_now())
    if log_dir is not None:
        for run in session.runs.values():
            run.keep(options.LOG_DIR_NAME, {"log_dir": str(log_dir)})
    checked = preflight.before_measuring(args, session)
    adaptive = Adaptive(session, asked.cells, goal)
    expected_s = estimates(args, asked.cells).within_limit_s
    with progress(args.json, session.steps, session.pending, expected_s, preflight.printed(args)) as observer:
        workshop = Workshop(
            arms={
                name: preflight.behind(checked, arm, _arm(args, session.runs[name], arm))
                for name, arm in asked.arms.items()
            },
            observer=observer,
            machine=here,
            import_roots=[str(Path.cwd()), str(args.matrix.resolve().parent)],
            dataset_dir=_dataset_dir(args),
            log_dir=log_dir,
        )
        measure(workshop, session.pending, adaptive.more)
    session.finish(adaptive.why(), utc_now())
    return session


def _arm(args: argparse.Namespace, run: Run, asked: ArmAsked) -> Arm:
    from runner.campaign import Arm

    if args.seams.executor:
        return Arm(run, args.seams.executor, asked.fault)
    executors = executors_of(args)
    return Arm(run, executors.executor(run, asked.python), asked.fault, executors.contract)


def _dataset_dir(args: argparse.Namespace) -> str | None:
    """Return where a cell finds data sets; None for the usual place of a machine with other files than this one."""
    if not executors_of(args).contract.local_files:
        return str(args.datasets) if args.datasets else None
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return str((args.datasets or home / "datasets").resolve())


def conclude(args: argparse.Namespace, store: Run, session: Session) -> int:
    """Write the report, print the table, and return the exit code that the records ask for."""
    from records.store import latest_attempts
    from runner.cli import preflight
    from runner.cli.present import as_json, print_table
    from runner.cli.stored import write_report

    store.clear_leftovers()
    found = write_report(store, store.folder / "report.html")
    latest = latest_attempts(found.records)
    code = exit_code(latest, max(0, len(session.steps) - len(latest)))
    if args.json:
        print(as_json(store, found, code))
    else:
        print_table(found, preflight.printed(args))
        if advice := merge_advice(found.rows, in_service=args.in_service):
            print(advice)
        print(f"\nreport: {_page(args, store)}   records: {store.folder / 'records'}")
    return code


def merge_advice(rows: Sequence[Row], *, in_service: bool) -> str | None:
    """Return how to compare the one backend of this run with those of other runs; None where there are several."""
    from records.settings import BACKENDS

    backends = {backend for row in rows for backend in row.cells}
    if len(backends) != 1 or not backends <= set(BACKENDS):
        return None
    command = "docker compose run --rm report" if in_service else "runner report --merge"
    return f"{backends.pop()} alone was measured; for one table with the newest runs of the other backends: {command}"


def _page(args: argparse.Namespace, store: Run) -> Path:
    """Return the page's path, through the link `latest` where that leads to this run."""
    latest: Path = args.results / "latest"
    return (latest if latest.resolve() == store.folder.resolve() else store.folder) / "report.html"


def exit_code(latest: Sequence[Record], pending: int) -> int:
    """Return 3 where infrastructure left something pending, 1 where a cell is not ok, else 0. Pure."""
    from records.schema import HARMLESS, Status

    statuses = Counter(record.status for record in latest)
    if pending or statuses[Status.INFRA]:
        return 3
    return 1 if any(status not in HARMLESS for status in statuses) else 0
