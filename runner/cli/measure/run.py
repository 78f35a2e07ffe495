"""Measure the cells of a matrix and show what was found.

The same command continues the newest unfinished run of the same plan: its pending cells and those that the
infrastructure spoiled. A finished one starts a new run."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.runner.cli.measure import sending
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render.display import TerminalDisplay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keras_matrix.analysis.comparison.table import Row
    from keras_matrix.records.schema import Record
    from keras_matrix.records.store import Run
    from keras_matrix.runner.plan.session import Session
    from keras_matrix.runner.request import RunRequest

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
    request, upload = run_request(args), sending.asked(args)
    display = TerminalDisplay(args.json)
    session = _measured(request, display)
    code = conclude(request, session, display)
    if upload is not None:
        sending.after_run(upload, request.results)
    return code


def _measured(request: RunRequest, display: TerminalDisplay) -> Session:
    from keras_matrix.runner.cli.measure import largest
    from keras_matrix.runner.measure.largest_search import with_largest
    from keras_matrix.runner.measure.measuring import about_matrix, measure_session, session_request
    from keras_matrix.runner.plan.adaptive import Goal

    matrix, cells = request.choice.load(largest=True)
    asked = session_request(request, cells, about_matrix(request.choice.matrix, matrix.left_out))
    asked, found = with_largest(request, asked, display)
    if found is not None:
        display.say("\n".join(largest.lines(found, display.known_problems)))
    return measure_session(request, asked, Goal(request.budget_of(matrix)), display)


def conclude(request: RunRequest, session: Session, display: TerminalDisplay) -> int:
    """Write the report, print the table, and return the exit code that the records ask for."""
    from keras_matrix.records.store import latest_attempts
    from keras_matrix.runner.cli.look.stored import write_report
    from keras_matrix.runner.cli.render.findings import as_json, print_table

    store = session.runs[""]
    store.clear_leftovers()
    found = write_report(store, store.folder / "report.html")
    latest = latest_attempts(found.records)
    code = exit_code(latest, max(0, len(session.repeats) - len(latest)))
    if display.quiet:
        print(as_json(store, found, code))
    else:
        print_table(found, display.known_problems)
        if advice := merge_advice(found.rows, in_service=request.in_service):
            print(advice)
        print(f"\nreport: {_page(request.results, store)}   records: {store.folder / 'records'}")
    return code


def merge_advice(rows: Sequence[Row], *, in_service: bool) -> str | None:
    """Return how to compare the one backend of this run with those of other runs; None where there are several."""
    from keras_matrix.records.settings import BACKENDS

    backends = {backend for row in rows for backend in row.cells}
    if len(backends) != 1 or not backends <= set(BACKENDS):
        return None
    command = "docker compose run --rm report" if in_service else "runner report --merge"
    return f"{backends.pop()} alone was measured; for one table with the newest runs of the other backends: {command}"


def _page(results: Path, store: Run) -> Path:
    """Return the page's path, through the link `latest` where that leads to this run."""
    latest = results / "latest"
    return (latest if latest.resolve() == store.folder.resolve() else store.folder) / "report.html"


def exit_code(latest: Sequence[Record], pending: int) -> int:
    """Return 3 where infrastructure left something pending, 1 where a cell is not ok, else 0. Pure."""
    from keras_matrix.records.schema import HARMLESS, Status

    statuses = Counter(record.status for record in latest)
    if pending or statuses[Status.INFRA]:
        return 3
    return 1 if any(status not in HARMLESS for status in statuses) else 0
