"""Measure the cells of a matrix and print the table.

The same command continues the newest unfinished run of the same plan: its pending cells and those that failed because
of the infrastructure. If that run is finished, a new one starts."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.table import Row
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.schema import HARMLESS, Record, Status
from keras_matrix.records.store import Run, latest_attempts
from keras_matrix.runner.cli.measure import sending
from keras_matrix.runner.cli.options import add_matrix_options, add_measuring_options, run_request
from keras_matrix.runner.cli.render import findings
from keras_matrix.runner.cli.render.display import TerminalDisplay
from keras_matrix.runner.measure.experiment import Experiment, measured
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import Session
from keras_matrix.runner.service.stored import Findings, write_report


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    add_matrix_options(parser, workload=True)
    add_measuring_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of progress and table")
    sending.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and upload. Returns the exit code."""
    request, upload = run_request(args), sending.upload_of(args)
    display = TerminalDisplay(args.json)
    session = measured_matrix(request, display)
    code = conclude(request, session, display)
    if upload is not None:
        sending.after_run(upload, request.results)
    return code


def measured_matrix(request: RunRequest, display: TerminalDisplay) -> Session:
    """Measure the chosen cells of a matrix, largest batch sizes included, and return the finished session."""
    matrix, cells = request.choice.load(largest=True)
    request.choice.check_workloads(matrix, cells)
    about = request.choice.about(matrix.left_out)
    experiment = Experiment(cells, about, budget_s=request.budget_of(matrix))
    if any(cell.uses_largest_batch for cell in cells):
        experiment = _with_largest(request, experiment, display)
    return measured(request, experiment, display)


def _with_largest(request: RunRequest, experiment: Experiment, display: TerminalDisplay) -> Experiment:
    """Return the experiment with a number in place of each `batch_size: largest`, and print the results."""
    from keras_matrix.runner.cli.measure.largest import lines  # only such a matrix needs it
    from keras_matrix.runner.measure.largest_search import with_largest

    experiment, largest = with_largest(request, experiment, display)
    display.say("\n".join(lines(largest, display.known_problems)))
    return experiment


@dataclass(frozen=True, slots=True)
class Finished:
    """A session that has ended: its run, with findings, latest attempts and exit code."""

    run: Run
    found: Findings
    latest: list[Record]
    exit_code: int


def finished(session: Session) -> Finished:
    """Write the report of a session with one run, and return its findings."""
    run = session.runs[""]
    run.clear_leftovers()
    found = write_report(run)
    latest = latest_attempts(found.records)
    return Finished(run, found, latest, exit_code(latest, max(0, len(session.repeats) - len(latest))))


def conclude(request: RunRequest, session: Session, display: TerminalDisplay) -> int:
    """Write the report, print the table, and return the exit code."""
    done = finished(session)
    if display.quiet:
        print(findings.as_json(done.run, done.found, done.exit_code))
    else:
        findings.print_table(done.found, display.known_problems)
        if advice := merge_advice(done.found.rows, in_service=request.in_service):
            print(advice)
        # The path through the link `latest` is shorter.
        latest = request.results / "latest"
        folder = latest if latest.resolve() == done.run.folder.resolve() else done.run.folder
        print(f"\nreport: {folder / 'report.html'}   records: {done.run.folder / 'records'}")
    return done.exit_code


def merge_advice(rows: Sequence[Row], *, in_service: bool) -> str | None:
    """Return how to compare the only backend of this run with those of other runs; None if there are several."""
    backends = {backend for row in rows for backend in row.cells}
    if len(backends) != 1 or not backends <= set(BACKENDS):
        return None
    command = "docker compose run --rm report" if in_service else "runner report --merge"
    return f"{backends.pop()} alone was measured; for one table with the newest runs of the other backends: {command}"


def exit_code(latest: Sequence[Record], pending: int) -> int:
    """Return 3 if repeats are pending because of the infrastructure, 1 if a cell is not ok, else 0."""
    statuses = Counter(record.status for record in latest)
    if pending or statuses[Status.INFRA]:
        return 3
    return 1 if any(status not in HARMLESS for status in statuses) else 0
