"""Measuring what was planned: each repeat in its own process, each attempt one record, published as it ends.

Knows the seams (`Executor`, the store, an observer) and the pure parts (plan, judge); nothing of terminals or flags.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from records.schema import (
    SCHEMA_VERSION,
    CellResult,
    Evidence,
    Harness,
    Learning,
    Machine,
    Memory,
    Record,
    Status,
    Times,
)
from records.store import Run
from runner.cell.job import RESULT_LIMIT_BYTES, Job, Purpose
from runner.executors import Executor, Outcome
from runner.judge import ResultRefused, Verdict, accept, judge
from runner.matrix import Cell
from runner.plan import Step, calibration_group

TARGET_EPOCH_S = 0.5
# A calibration reads a little fast or slow; without a margin half of all epochs would fall short of the target.
TARGET_MARGIN = 1.05
INFRA_ATTEMPTS = 3
OUTPUT_TAIL_CHARACTERS = 8000


class Observer(Protocol):
    """Is told what happens, as it happens."""

    def calibrating(self, cell: Cell) -> None:
        """The steps per epoch of this cell's work are being found."""

    def begun(self, step: Step) -> None:
        """A repeat begins."""

    def ended(self, step: Step, record: Record) -> None:
        """An attempt has ended and is published."""


def utc_now() -> datetime:
    """Return the wall-clock time: a label for people, never used in arithmetic."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What measuring needs: where records go, what runs the cells, who watches."""

    run: Run
    executor: Executor
    observer: Observer
    machine: Machine
    import_roots: list[str] = field(default_factory=list)
    dataset_dir: str | None = None
    now: Callable[[], datetime] = utc_now


def measure(workshop: Workshop, cells: Sequence[Cell], steps: Iterable[Step]) -> None:
    """Measure `steps` in their order and publish a record of every attempt.

    `cells` is the whole plan, resumed or not: cells that share a number of steps per epoch are calibrated together.
    Raises `Interrupted` as it comes, with nothing left running, and `StoreFailure` when a record cannot be kept.
    """
    attempts = _next_attempts(workshop.run)
    try:
        for _, block in itertools.groupby(steps, key=lambda step: step.repeat):
            together = list(block)
            workshop.executor.begin_block([step.cell.settings for step in together])
            for step in together:
                workshop.observer.begun(step)
                _measure_repeat(workshop, cells, step, attempts.get((step.cell.cell_id, step.repeat), 0))
    finally:
        workshop.executor.close()


def _next_attempts(run: Run) -> dict[tuple[str, int], int]:
    records, _ = run.load()
    return {(record.cell_id, record.repeat): record.attempt + 1 for record in records}


def _measure_repeat(workshop: Workshop, cells: Sequence[Cell], step: Step, attempt: int) -> None:
    """Run one repeat; try again only what the infrastructure spoiled."""
    missing = workshop.executor.missing(step.cell.settings.backend)
    count = 1 if missing else _steps_per_epoch(workshop, cells, step.cell)
    for tried in range(INFRA_ATTEMPTS):
        if missing:
            job = _job(workshop, step, attempt + tried, count)
            record = _record(workshop, job, Outcome(infrastructure=missing), workshop.now())
        else:
            record = _attempt(workshop, step, attempt + tried, count)
        workshop.run.publish(record)
        workshop.observer.ended(step, record)
        if missing or record.status is not Status.INFRA:
            return


def _attempt(workshop: Workshop, step: Step, attempt: int, count: int) -> Record:
    job = _job(workshop, step, attempt, count)
    started_at = workshop.now()
    outcome = workshop.executor.run(job, step.cell.timeout_s)
    record = _record(workshop, job, outcome, started_at)
    shutil.rmtree(job.folder, ignore_errors=True)
    return record


def _steps_per_epoch(workshop: Workshop, cells: Sequence[Cell], cell: Cell) -> int:
    asked = cell.settings.steps_per_epoch
    chunk = cell.settings.steps_per_execution
    # A warm start needs someone to have warmed the cache: the calibration does.
    calibrated = _calibrated(workshop, cells, cell) if asked == "auto" or cell.settings.compile_cache == "warm" else 1
    if asked == "seed":
        count = math.ceil(cell.settings.samples / cell.settings.batch_size)
    else:
        count = calibrated if asked == "auto" else int(asked)
    return math.ceil(count / chunk) * chunk


def _calibrated(workshop: Workshop, cells: Sequence[Cell], cell: Cell) -> int:
    """Return the steps that make every backend's epoch long enough, found once per run for all backends of a work."""
    group = calibration_group(cell.settings)
    found = workshop.run.calibration(group)
    if found is None:
        members = [c for c in cells if calibration_group(c.settings) == group]
        times_s = {c.settings.backend: _step_time_s(workshop, c) for c in members}
        found = {"step_time_s": times_s, "steps_per_epoch": steps_for(list(times_s.values()))}
        workshop.run.keep_calibration(group, found)
    return int(found["steps_per_epoch"])


def steps_for(step_times_s: Iterable[float | None]) -> int:
    """Return the smallest number of steps whose epoch lasts `TARGET_EPOCH_S` on every backend. Pure.

    A backend whose step time is None could not be calibrated and has no say; without any, one step.
    """
    known = [seconds for seconds in step_times_s if seconds]
    return max((math.ceil(TARGET_MARGIN * TARGET_EPOCH_S / seconds) for seconds in known), default=1)


def _step_time_s(workshop: Workshop, cell: Cell) -> float | None:
    if workshop.executor.missing(cell.settings.backend):
        return None
    workshop.observer.calibrating(cell)
    job = _job(workshop, Step(cell, 0), 0, None)
    outcome = workshop.executor.run(job, cell.timeout_s)
    result, problem = _result(job)
    verdict = judge(job, outcome, result, problem)
    return result.times.step_time_s if result and verdict.status is Status.OK else None


def _job(workshop: Workshop, step: Step, attempt: int, count: int | None) -> Job:
    cell = step.cell
    purpose = Purpose.CALIBRATE if count is None else Purpose.MEASURE
    folder = workshop.run.scratch(f"{cell.cell_id}.{step.repeat}.{attempt}.{purpose}")
    cache = None
    if cell.settings.compile_cache == "warm":
        cache = workshop.run.folder / "compile-cache" / cell.settings.backend
        cache.mkdir(parents=True, exist_ok=True)
    return Job(
        purpose=purpose,
        nonce=secrets.token_hex(16),
        cell_id=cell.cell_id,
        repeat=step.repeat,
        attempt=attempt,
        settings=cell.settings,
        steps=count,
        folder=str(folder.absolute()),
        import_roots=workshop.import_roots,
        dataset_dir=workshop.dataset_dir,
        compile_cache_dir=str(cache.absolute()) if cache else None,
    )


def _record(workshop: Workshop, job: Job, outcome: Outcome, started_at: datetime) -> Record:
    result, problem = _result(job)
    verdict = judge(job, outcome, result, problem)
    return build_record(job, outcome, (result, problem, verdict), (workshop.run.run_id, workshop.machine, started_at))


def build_record(
    job: Job,
    outcome: Outcome,
    judged: tuple[CellResult | None, str | None, Verdict],
    context: tuple[str, Machine, datetime],
) -> Record:
    """Put one attempt's evidence, result and verdict together. Pure."""
    (result, problem, verdict), (run_id, machine, started_at) = judged, context
    peaks = (result.memory.peak_host_memory_bytes if result else None, outcome.peak_tree_memory_bytes)
    return Record(
        schema_version=SCHEMA_VERSION,
        run_id=run_id,
        cell_id=job.cell_id,
        repeat=job.repeat,
        attempt=job.attempt,
        status=verdict.status,
        reason=verdict.reason,
        warnings=list(verdict.warnings),
        started_at=started_at.isoformat(timespec="seconds"),
        settings=job.settings,
        resolved=result.resolved if result else None,
        device=result.device if result else None,
        times=result.times if result else Times(),
        learning=result.learning if result else Learning(),
        memory=Memory(
            max((peak for peak in peaks if peak is not None), default=None),
            result.memory.peak_device_memory_bytes if result else None,
        ),
        versions=result.versions if result else {},
        machine=machine,
        surroundings=outcome.surroundings,
        evidence=_evidence(outcome, result, problem, verdict),
        harness=Harness(outcome.wall_time_s, outcome.start_time_s, outcome.parent_cpu_time_s),
    )


def _evidence(outcome: Outcome, result: CellResult | None, problem: str | None, verdict: Verdict) -> Evidence:
    return Evidence(
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        deadline_exceeded=outcome.deadline_exceeded,
        oom_kills=outcome.oom_kills,
        result_problem=problem,
        exception=result.exception if result else None,
        output_tail="" if verdict.status is Status.OK else outcome.output_tail[-OUTPUT_TAIL_CHARACTERS:],
    )


def _result(job: Job) -> tuple[CellResult | None, str | None]:
    try:
        return accept(_read_bounded(job.result_path), job), None
    except ResultRefused as refused:
        return None, str(refused)


def _read_bounded(path: Path) -> bytes | None:
    """Read what the cell left, were it hostile: no link is followed, no pipe waited on, no giant swallowed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultRefused(f"bad_result: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as handle:
        try:
            return handle.read(RESULT_LIMIT_BYTES + 1)
        except OSError as error:
            raise ResultRefused(f"bad_result: {error.strerror}") from error
