"""From what was seen of an external command to its status: pure, by the same rules as any cell's.

The exit status counts, and the primary metric must be there; another metric that is missing fails by itself. Where the
primary one is missing the others still count: `analysis.comparison.primary_metric.completed`.
"""

from __future__ import annotations

from collections.abc import Iterator

from keras_matrix.records.schema import Status
from keras_matrix.records.task import TaskRun, primary_missing
from keras_matrix.runner.executors import Outcome
from keras_matrix.runner.measure.judge import Verdict, caveats_around, ended_by_force, not_run
from keras_matrix.runner.measure.lost_gpu import reported_lost
from keras_matrix.runner.tasks.observation import TaskObservation

WORDS_CHARACTERS = 200


def judge_task(outcome: Outcome) -> Verdict:
    """Return the verdict on one attempt at a command."""
    if ended := not_run(outcome):
        return ended
    if lost := reported_lost(outcome):
        return Verdict(Status.INFRA, lost)
    seen = outcome.task
    assert seen is not None
    if ended := _ended_badly(outcome, seen):
        return ended
    return _measured(outcome, seen)


def _ended_badly(outcome: Outcome, seen: TaskObservation) -> Verdict | None:
    if seen.no_device:
        return Verdict(Status.DEVICE_MISMATCH, seen.no_device)
    if seen.never or seen.stopped:
        return Verdict(Status.ERROR, seen.never or seen.stopped)
    if forced := ended_by_force(outcome):
        return forced
    if outcome.exit_code != 0:
        return Verdict(Status.ERROR, f"exit code {outcome.exit_code}{_last_words(outcome.output_tail)}")
    return None


def _measured(outcome: Outcome, seen: TaskObservation) -> Verdict:
    primary = seen.run.primary_metric
    warnings = (*_warnings(seen.run), *seen.caveats, *caveats_around(outcome, [outcome.wall_time_s or 0.0]))
    if primary is not None and primary.value is not None:
        return Verdict(Status.OK, None, warnings)
    problem = primary.problem if primary and primary.problem else "no_match: the command reported no such metric"
    status = Status.DIVERGED if problem.startswith("not_finite") else Status.ERROR
    outlived = "; processes outlived the command: have it wait for them" if seen.run.outlived else ""
    return Verdict(status, primary_missing(seen.run.primary, f"{problem}{outlived}"), warnings)


def _warnings(run: TaskRun) -> Iterator[str]:
    if run.outlived:
        yield (
            f"outlived: {run.outlived} of the command's processes still ran when it had ended, and were ended; "
            "run it in the foreground, or have it wait for them"
        )
    for metric in run.metrics:
        if metric.problem and metric.name != run.primary:
            yield f"metric_missing: {metric.name}: {metric.problem}; look at its pattern and at what was printed"


def _last_words(output: str) -> str:
    lines = output.strip().splitlines()
    return f": {lines[-1][:WORDS_CHARACTERS]}" if lines else ""
