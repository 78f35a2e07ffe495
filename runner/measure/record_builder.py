"""Builds the record of a process that ended: reads its files as untrusted input, judges them, and fills the record.

The status of an external command is decided from its observation, by the same rules as for any cell. The command must
exit with 0 and report its primary metric; another missing metric is only a warning. If the primary one is missing, the
others still count: `analysis.comparison.primary_metric.completed`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.memory_growth import Growth, growth, growth_text
from keras_matrix.records import files, schema
from keras_matrix.records.instruments.usage import Usage, usage_series_name
from keras_matrix.records.schema import CellResult, Evidence, Learning, Machine, Memory, Record, Status, Times
from keras_matrix.records.store import Problem
from keras_matrix.records.task import TaskRun, primary_missing
from keras_matrix.records.text import printable
from keras_matrix.runner.cell.job import RESULT_LIMIT_BYTES, Job
from keras_matrix.runner.executors import Outcome, TaskObservation
from keras_matrix.runner.measure.evidence import reported_lost
from keras_matrix.runner.measure.judge import (
    ResultRefused,
    StatusVerdict,
    accept,
    caveats_around,
    ended_by_force,
    judge,
    not_run,
)

OUTPUT_TAIL_CHARACTERS = 8000
MOST_NAMED = 3
Growths = tuple[Growth | None, Growth | None]
"""Those of the host's and of the device's memory."""
WORDS_CHARACTERS = 200


def record_of(run_id: str, machine: Machine, job: Job, outcome_and_start: tuple[Outcome, datetime]) -> Record:
    """Return the record of an attempt from the files of its process."""
    outcome, started_at = outcome_and_start
    result, problem = (None, None) if job.task else read_result(job)
    verdict = judge_task(outcome) if job.task else judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), (run_id, machine, started_at))


def build_record(
    job: Job,
    outcome: Outcome,
    judged: tuple[CellResult | None, str | None, StatusVerdict],
    context: tuple[str, Machine, datetime],
) -> Record:
    """Return the record of an attempt from its evidence, result and verdict. Pure."""
    (result, problem, verdict), (run_id, machine, started_at) = judged, context
    growths = _growths(outcome, result)
    tree_peak = None if result and result.artefact else outcome.peak_tree_memory_bytes  # of the export, too
    peaks = (result.memory.peak_host_memory_bytes if result else None, tree_peak)
    return Record(
        schema_version=schema.SCHEMA_VERSION,
        run_id=run_id,
        cell_id=job.cell_id,
        repeat=job.repeat,
        attempt=job.attempt,
        status=verdict.status,
        reason=None if verdict.reason is None else printable(verdict.reason),
        warnings=list(
            dict.fromkeys(map(printable, [*outcome.warnings, *verdict.warnings, *_growth_warnings(growths)]))
        ),
        started_at=started_at.isoformat(timespec="seconds"),
        settings=job.settings,
        resolved=result.resolved if result else None,
        device=result.device if result else None,
        times=result.times if result else Times(),
        learning=result.learning if result else Learning(),
        memory=replace(
            result.memory if result else Memory(),
            peak_host_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        ),
        versions=result.versions if result else {},
        machine=outcome.machine or machine,
        surroundings=outcome.surroundings,
        evidence=_evidence(outcome, result, problem, verdict),
        harness=schema.Harness(outcome.wall_time_s, outcome.start_time_s, outcome.parent_cpu_time_s),
        parallel=result.parallel if result else None,
        container=outcome.container,
        task=outcome.task.run if outcome.task else None,
        trace=result.trace if result else None,
        work=result.work if result else None,
        input=result.input if result else None,
        replicas=result.replicas if result else None,
        generation=result.generation if result else None,
        artefact=result.artefact if result else None,
        gpu_place=outcome.gpu_place,
        usage=_usage(job, outcome, result.times if result else Times(), growths),
    )


def with_changes(record: Record, changed_files: Sequence[Problem]) -> Record:
    """Return a record with the caveat that others changed records while it was measured; unchanged without any."""
    if not changed_files:
        return record
    names_text = ", ".join(f"{problem.path.name}: {problem.reason}" for problem in changed_files[:MOST_NAMED])
    more_text = f" and {len(changed_files) - MOST_NAMED} more" * (len(changed_files) > MOST_NAMED)
    advice = "set aside in records/corrupt; cells in containers cannot reach them (--executor docker)"
    return replace(
        record, warnings=[*record.warnings, f"results_changed: while it ran, {names_text}{more_text}; {advice}"]
    )


def _growths(outcome: Outcome, result: CellResult | None) -> Growths:
    """Return how much host and device memory a process that completed its epochs keeps with each step."""
    if result is None or result.resolved is None or result.exception is not None:
        return None, None
    epochs = (stretch for stretch in result.work.stretches if stretch.name == "epochs") if result.work else ()
    steps = next((stretch.steps for stretch in epochs), result.resolved.steps_per_epoch)  # with those of a lead-in
    device = [
        (float(epoch), memory_bytes) for epoch, memory_bytes in enumerate(result.memory.epoch_device_memory_bytes)
    ]
    return growth(outcome.memory_readings, steps), growth(device, steps)


def _growth_warnings(growths: Growths) -> list[str]:
    return [
        f"memory_grows: {memory_kind} memory grows by "
        f"{growth_text(Estimate(memory_growth.bytes_per_step, None, None, 1))}; look for "
        "tensors, histories or functions that are kept from step to step"
        for memory_kind, memory_growth in zip(("host", "device"), growths, strict=True)
        if memory_growth is not None and memory_growth.matters
    ]


def _usage(job: Job, outcome: Outcome, times: Times, growths: Growths) -> Usage | None:
    """Return the resource usage, with the file of its series, the samples per joule and the growth of memory."""
    usage = outcome.usage
    if usage is None:
        return None
    file = usage_series_name((job.cell_id, job.repeat, job.attempt)) if outcome.usage_series else None
    samples_per_j = None
    if usage.device_energy_j and times.samples_per_s is not None:
        samples_per_j = times.samples_per_s * sum(times.epoch_times_s) / usage.device_energy_j
    host, device = (memory_growth.bytes_per_step if memory_growth else None for memory_growth in growths)
    return replace(
        usage,
        course=file,
        samples_per_j=samples_per_j,
        host_growth_bytes_per_step=host,
        device_growth_bytes_per_step=device,
    )


def _evidence(outcome: Outcome, result: CellResult | None, problem: str | None, verdict: StatusVerdict) -> Evidence:
    not_observed = outcome.infrastructure or outcome.refused or outcome.missing_device
    return Evidence(
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        deadline_exceeded=outcome.deadline_exceeded,
        oom_kills=None if not_observed else outcome.oom_kills,
        result_problem=problem,
        exception=result.exception if result else None,
        output_tail="" if verdict.status is Status.OK else outcome.output_tail[-OUTPUT_TAIL_CHARACTERS:],
    )


def read_result(job: Job) -> tuple[CellResult | None, str | None]:
    """Return the result that a process wrote, or why it is refused."""
    try:
        return accept(read_bounded(job.result_path, RESULT_LIMIT_BYTES), job), None
    except ResultRefused as refusal:
        return None, str(refusal)


def read_bounded(path: Path, limit_bytes: int) -> bytes | None:
    """Return the beginning of a file of a cell, which is untrusted input: one byte more than the limit if it is longer.

    Raises `ResultRefused` for what a cell may have put there, and OSError for a failure that is not its own.
    """
    try:
        return files.read_range(path, 0, limit_bytes + 1)
    except FileNotFoundError:
        return None
    except files.UnfitFile as unfit:
        raise ResultRefused(f"bad_result: {unfit}") from unfit
    except OSError as error:
        if error.errno not in BY_A_CELL:
            raise
        raise ResultRefused(f"bad_result: {error.strerror}") from error


# Why a file cannot be opened that a cell made: a folder on its way, a mode.
BY_A_CELL = (errno.ENOTDIR, errno.EACCES, errno.EPERM)


def judge_task(outcome: Outcome) -> StatusVerdict:
    """Return the verdict on an attempt of a command."""
    if verdict := not_run(outcome):
        return verdict
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
        last_line_text = f": {lines[-1][:WORDS_CHARACTERS]}" if lines else ""
        return StatusVerdict(Status.ERROR, f"exit code {outcome.exit_code}{last_line_text}")
    return None


def _measured(outcome: Outcome, observed: TaskObservation) -> StatusVerdict:
    primary = observed.run.primary_metric
    warnings = (*_warnings(observed.run), *observed.caveats, *caveats_around(outcome, [outcome.wall_time_s or 0.0]))
    if primary is not None and primary.value is not None:
        return StatusVerdict(Status.OK, None, warnings)
    problem = primary.problem if primary and primary.problem else "no_match: the command did not report this metric"
    status = Status.DIVERGED if problem.startswith("not_finite") else Status.ERROR
    outlived_text = "; processes outlived the command, which should wait for them" if observed.run.outlived else ""
    return StatusVerdict(status, primary_missing(observed.run.primary, f"{problem}{outlived_text}"), warnings)


def _warnings(run: TaskRun) -> Iterator[str]:
    if run.outlived:
        yield (
            f"outlived: {run.outlived} of the command's processes still ran after its end, and were killed; "
            "run them in the foreground, or have the command wait for them"
        )
    for metric in run.metrics:
        if metric.problem and metric.name != run.primary:
            yield f"metric_missing: {metric.name}: {metric.problem}; check its pattern and the output"
