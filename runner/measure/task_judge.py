"""Decides the status of an external command from its observation, by the same rules as for any cell. Pure.

The command must exit with 0 and report its primary metric; another missing metric is only a warning. If the primary one
is missing, the others still count: `analysis.comparison.primary_metric.completed`.
"""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.records.schema import Status
from keras_matrix.records.task import TaskRun, primary_missing
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.executors.tasks.observation import TaskObservation
from keras_matrix.runner.measure.judge import StatusVerdict, caveats_around, ended_by_force, not_run
from keras_matrix.runner.measure.lost_gpu import reported_lost

WORDS_CHARACTERS = 200


def judge_task(outcome: Outcome) -> StatusVerdict:
    """Return the verdict on an attempt of a command."""
    if ended := not_run(outcome):
        return ended
    if lost := reported_lost(outcome):
        return StatusVerdict(Status.INFRA, lost)
    observed = outcome.task
    assert observed is not None
    return _failed(outcome, observed) or _measured(outcome, observed)


def _failed(outcome: Outcome, observed: TaskObservation) -> StatusVerdict | None:
    if observed.no_device:
        return StatusVerdict(Status.DEVICE_MISMATCH, observed.no_device)
    if observed.too_few_devices:
        return StatusVerdict(Status.UNSUPPORTED, observed.too_few_devices)
    if observed.never or observed.stopped:
        return StatusVerdict(Status.ERROR, observed.never or observed.stopped)
    if forced := ended_by_force(outcome):
        return forced
    if outcome.exit_code != 0:
        lines = outcome.output_tail.strip().splitlines()
        last = f": {lines[-1][:WORDS_CHARACTERS]}" if lines else ""
        return StatusVerdict(Status.ERROR, f"exit code {outcome.exit_code}{last}")
    return None


def _measured(outcome: Outcome, observed: TaskObservation) -> StatusVerdict:
    primary = observed.run.primary_metric
    warnings = (*_warnings(observed.run), *observed.caveats, *caveats_around(outcome, [outcome.wall_time_s or 0.0]))
    if primary is not None and primary.value is not None:
        return StatusVerdict(Status.OK, None, warnings)
    problem = primary.problem if primary and primary.problem else "no_match: the command did not report this metric"
    status = Status.DIVERGED if problem.startswith("not_finite") else Status.ERROR
    outlived = "; processes outlived the command, which should wait for them" if observed.run.outlived else ""
    return StatusVerdict(status, primary_missing(observed.run.primary, f"{problem}{outlived}"), warnings)


def _warnings(run: TaskRun) -> Iterator[str]:
    if run.outlived:
        yield (
            f"outlived: {run.outlived} of the command's processes still ran after its end, and were killed; "
            "run them in the foreground, or have the command wait for them"
        )
    for metric in run.metrics:
        if metric.problem and metric.name != run.primary:
            yield f"metric_missing: {metric.name}: {metric.problem}; check its pattern and the output"
