"""Measures the cells of a matrix and writes the report: `runner run`, and `keras_matrix.run` of the Python API.

The same request continues the newest unfinished run of the same plan. Values of cells that are found by measuring have
rows in `FOUND_BY`; what finds them is imported and entered only if a cell asks for it. Every command that measures the
cells of a matrix finds them by `with_found_values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from keras_matrix.records.schema import HARMLESS, Record, Status
from keras_matrix.records.store import Run, latest_attempts
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment, measured
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.session import Session
from keras_matrix.runner.service import exit_codes
from keras_matrix.runner.service.stored import Findings, write_report

# Whether a cell asks for a value, and the function `module:function` that returns the experiment with it.
FOUND_BY: tuple[tuple[Callable[[Cell], bool], str], ...] = (
    (lambda cell: cell.uses_largest_batch, "keras_matrix.runner.service.fit_batch:with_largest"),
    (lambda cell: bool(cell.settings.script), "keras_matrix.runner.service.script:with_calls"),
)


@dataclass(frozen=True, slots=True)
class Finished:
    """A session that has ended: its run, with findings, latest attempts and exit code."""

    run: Run
    found: Findings
    latest: list[Record]
    exit_code: int


def measured_matrix(request: RunRequest, display: Display) -> Finished:
    """Measure the chosen cells of a matrix, largest batch sizes included, and write the report."""
    matrix, cells = request.choice.load(largest=True)
    request.choice.check_workloads(matrix, cells)
    about = request.choice.about(matrix.left_out)
    experiment = Experiment(cells, about, budget_s=request.budget_of(matrix))
    return finished(measured(request, with_found_values(request, experiment, display), display))


def with_found_values(request: RunRequest, experiment: Experiment, display: Display) -> Experiment:
    """Return the experiment with those values of its cells that are found by measuring, in all of its arms."""
    for is_asked, found_by in FOUND_BY:
        if any(map(is_asked, experiment.cells)):
            experiment = resolve_name(found_by)(request, experiment, display)
    return experiment


def finished(session: Session) -> Finished:
    """Write the report of a session with one run, and return its findings."""
    run = session.runs[""]
    run_findings = write_report(run)
    latest = latest_attempts(run_findings.records)
    return Finished(run, run_findings, latest, exit_code(latest, max(0, len(session.repeats) - len(latest))))


def exit_code(latest: Sequence[Record], pending: int) -> int:
    """Return the exit code of a run: 3 if repeats are pending because of the infrastructure, 1 if a cell is not ok."""
    count_by_status = Counter(record.status for record in latest)
    if pending or count_by_status[Status.INFRA]:
        return exit_codes.INFRASTRUCTURE
    return exit_codes.NOT_OK if any(status not in HARMLESS for status in count_by_status) else exit_codes.OK
