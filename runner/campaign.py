"""Measuring what was planned: each repeat in its own process, each attempt one record, published as it ends.

Knows the seams (`Executor`, the store, an observer) and the pure parts (plan, judge); nothing of terminals or flags.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shutil
import stat
from collections import Counter
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
from records.settings import Settings
from records.store import Run
from runner.cell.job import RESULT_LIMIT_BYTES, Job
from runner.executors import Executor, Outcome, Running
from runner.judge import ResultRefused, Verdict, accept, judge
from runner.matrix import Cell
from runner.plan import Step, calibration_group

TARGET_EPOCH_S = 0.5
# A calibration reads a little fast or slow; without a margin half of all epochs would fall short of the target.
TARGET_MARGIN = 1.1
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


def measure(workshop: Workshop, steps: Iterable[Step]) -> None:
    """Measure `steps` in their order and publish a record of every attempt.

    Raises `Interrupted` as it comes, with nothing left running, and `StoreFailure` when a record cannot be kept.
    """
    campaign = _Campaign(workshop)
    try:
        for _, steps_of_block in itertools.groupby(steps, key=lambda step: step.repeat):
            block = list(steps_of_block)
            workshop.executor.begin_block([step.cell.settings for step in block])
            for _, comparison in itertools.groupby(block, key=lambda step: calibration_group(step.cell.settings)):
                campaign.compare(list(comparison))
    finally:
        workshop.executor.close()


def steps_for(step_times_s: Iterable[float]) -> int:
    """Return the smallest number of steps whose epoch lasts `TARGET_EPOCH_S` on every backend; 1 for none. Pure."""
    return max((math.ceil(TARGET_MARGIN * TARGET_EPOCH_S / seconds) for seconds in step_times_s), default=1)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A process that was started for a step, and the job it was given."""

    step: Step
    job: Job
    running: Running
    started_at: datetime


class _Campaign:
    """One start of the runner over its steps."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        records, _ = workshop.run.load()
        self._next_attempt = Counter({(r.cell_id, r.repeat): r.attempt + 1 for r in records})
        self._tried: Counter[tuple[str, int]] = Counter()

    def compare(self, steps: Sequence[Step]) -> None:
        """Measure one repeat of cells that differ in their backend only."""
        measured = self._calibrate(steps) if self._needs_calibration(steps[0].cell) else []
        for step in steps:
            if step not in measured:
                self._repeat(step)

    def _needs_calibration(self, cell: Cell) -> bool:
        automatic = cell.settings.steps_per_epoch == "auto" or cell.settings.compile_cache == "warm"
        return automatic and self._workshop.run.calibration(calibration_group(cell.settings)) is None

    def _calibrate(self, steps: Sequence[Step]) -> list[Step]:
        """Find the steps per epoch that these cells share; return the steps that were measured on the way.

        Each process goes as far as its step time and waits there; when all have told theirs, they are told how many
        steps an epoch has and are measured one at a time.
        """
        times_s: dict[str, float] = {}
        waiting, measured = [], []
        for step in steps:
            if self._workshop.executor.missing(step.cell.settings.backend):
                continue
            self._workshop.observer.calibrating(step.cell)
            trial = self._start(step, None)
            found_s = trial.running.calibrated()
            if found_s is None:
                measured += self._end(trial)
                continue
            times_s[step.cell.settings.backend] = found_s
            if _may_wait(step.cell):
                waiting.append(trial)
            else:
                self._abandon(trial)
        if times_s:
            found = {"step_time_s": times_s, "steps_per_epoch": steps_for(times_s.values())}
            self._workshop.run.keep_calibration(calibration_group(steps[0].cell.settings), found)
        for trial in waiting:
            self._workshop.observer.begun(trial.step)
            trial.running.resume(self._steps_per_epoch(trial.step.cell))
            measured += self._end(trial)
        return measured

    def _repeat(self, step: Step) -> None:
        """Measure one repeat; try again only what the infrastructure spoiled."""
        self._workshop.observer.begun(step)
        if missing := self._workshop.executor.missing(step.cell.settings.backend):
            self._publish(step, self._job(step, 1), Outcome(infrastructure=missing), self._workshop.now())
            return
        count = self._steps_per_epoch(step.cell)
        while self._tried[step.cell.cell_id, step.repeat] < INFRA_ATTEMPTS:
            if self._end(self._start(step, count)):
                return

    def _steps_per_epoch(self, cell: Cell) -> int:
        asked = cell.settings.steps_per_epoch
        chunk = cell.settings.steps_per_execution
        if asked == "seed":
            count = math.ceil(cell.settings.samples / cell.settings.batch_size)
        elif asked == "auto":
            found = self._workshop.run.calibration(calibration_group(cell.settings)) or {}
            count = int(found.get("steps_per_epoch", 1))
        else:
            count = int(asked)
        return math.ceil(count / chunk) * chunk

    def _start(self, step: Step, count: int | None) -> _Trial:
        job = self._job(step, count)
        started_at = self._workshop.now()
        return _Trial(step, job, self._workshop.executor.start(job, step.cell.timeout_s), started_at)

    def _end(self, trial: _Trial) -> list[Step]:
        """Wait for a process's end and publish its record; return the step, or nothing where it must be tried again."""
        outcome = trial.running.finish()
        record = self._publish(trial.step, trial.job, outcome, trial.started_at)
        return [] if record.status is Status.INFRA else [trial.step]

    def _abandon(self, trial: _Trial) -> None:
        trial.running.abandon()
        shutil.rmtree(trial.job.folder, ignore_errors=True)

    def _publish(self, step: Step, job: Job, outcome: Outcome, started_at: datetime) -> Record:
        record = _record(self._workshop, job, outcome, started_at)
        shutil.rmtree(job.folder, ignore_errors=True)
        key = step.cell.cell_id, step.repeat
        self._next_attempt[key] += 1
        self._tried[key] += 1
        self._workshop.run.publish(record)
        self._workshop.observer.ended(step, record)
        return record

    def _job(self, step: Step, count: int | None) -> Job:
        settings = step.cell.settings
        attempt = self._next_attempt[step.cell.cell_id, step.repeat]
        folder = self._workshop.run.scratch(f"{step.cell.cell_id}.{step.repeat}.{attempt}")
        return Job(
            nonce=secrets.token_hex(16),
            cell_id=step.cell.cell_id,
            repeat=step.repeat,
            attempt=attempt,
            settings=settings,
            steps=count,
            folder=str(folder.absolute()),
            import_roots=self._workshop.import_roots,
            dataset_dir=self._workshop.dataset_dir,
            compile_cache_dir=self._compile_cache(settings),
        )

    def _compile_cache(self, settings: Settings) -> str | None:
        if settings.compile_cache == "cold":
            return None
        folder = self._workshop.run.folder / "compile-cache" / settings.backend
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder.absolute())


def _may_wait(cell: Cell) -> bool:
    """Return whether a calibrated process may wait for the others and then be measured.

    An accelerator cannot hold several processes at once, and a warm start needs a process that began after another had
    filled the cache: there the calibrated process is ended, and its cell started again with its steps.
    """
    return cell.settings.device == "cpu" and cell.settings.compile_cache == "cold"


def _record(workshop: Workshop, job: Job, outcome: Outcome, started_at: datetime) -> Record:
    result, problem = read_result(job)
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


def read_result(job: Job) -> tuple[CellResult | None, str | None]:
    """Return the result a process left, or why it counts for nothing."""
    try:
        return accept(read_bounded(job.result_path, RESULT_LIMIT_BYTES), job), None
    except ResultRefused as refused:
        return None, str(refused)


def read_bounded(path: Path, limit_bytes: int) -> bytes | None:
    """Read what the cell left, were it hostile: no link is followed, no pipe waited on, no giant swallowed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultRefused(f"bad_result: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ResultRefused("bad_result: not a regular file")
        return os.pread(descriptor, limit_bytes + 1, 0)
    finally:
        os.close(descriptor)
