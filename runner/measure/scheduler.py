"""Measuring what was planned: each repeat in its own process, each attempt one record.

The records of a comparison's block are published together, once all of its processes have ended: whether the machine
was disturbed is asked of the whole block.

Knows the seams (`Executor`, the store, an observer) and the pure parts (plan, judge); nothing of terminals or flags.
"""

from __future__ import annotations

import itertools
import math
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from keras_matrix.records.host.system import free_memory_bytes
from keras_matrix.records.schema import MEASURED, Machine, Record, Status
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.contract import Contract
from keras_matrix.runner.executors.shared_folders import CUDA_CACHE, autotuned, compile_cache, cuda_cache, made
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.host.surroundings.block import judged_together
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.record_builder import record_of
from keras_matrix.runner.plan.plan import Step, calibration_group

TARGET_EPOCH_S = 0.5
# A calibration reads a little fast or slow; without a margin half of all epochs would fall short of the target.
TARGET_MARGIN = 1.1
INFRA_ATTEMPTS = 3
MOST_REPLACEMENTS = 1
# Of a session's blocks: where more are disturbed, that is what the machine is like, and each would only cost twice.
REPLACED_SHARE, SURELY_REPLACED = 0.25, 2
# What a process may come to need beyond its own size so far, before another is started beside it.
ROOM_FACTOR = 2
# Every process of a cell does the same: one of them is traced.
TRACED_REPEAT = 0


class Observer(Protocol):
    """Is told what happens, as it happens."""

    def calibrating(self, cell: Cell) -> None:
        """The steps per epoch of this cell's work are being found."""

    def begun(self, step: Step) -> None:
        """A repeat begins."""

    def taking_turns(self, steps: Sequence[Step]) -> None:
        """These repeats have warmed up, and their kept epochs begin, in turn."""

    def ended(self, step: Step, record: Record) -> None:
        """An attempt has ended and is published."""


def utc_now() -> datetime:
    """Return the wall-clock time: a label for people, never used in arithmetic."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Arm:
    """Where the records of an arm go and what runs its cells, under which contract; `fault` is planted in workloads."""

    run: Run
    executor: Executor
    fault: str | None = None
    contract: Contract = Contract()


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """What measuring needs: the arms by name, who watches, what this machine is and has free.

    `log_dir` is where TensorBoard shall find what it shows, None for nowhere.
    """

    arms: Mapping[str, Arm]
    observer: Observer
    machine: Machine
    import_roots: list[str] = field(default_factory=list)
    dataset_dir: str | None = None
    log_dir: Path | None = None
    now: Callable[[], datetime] = utc_now


def measure(context: MeasurementContext, steps: Iterable[Step], more: Callable[[], list[Step]] = list) -> None:
    """Measure `steps` in their order and publish a record of every attempt; then what `more` asks for, until nothing.

    Each answer of `more` is one block. Raises `Interrupted` as it comes, with nothing left running, and `StoreFailure`
    when a record cannot be kept.
    """
    campaign = _Campaign(context)
    try:
        for _, steps_of_block in itertools.groupby(steps, key=lambda step: step.repeat):
            campaign.block(list(steps_of_block))
        while further := more():
            campaign.block(further)
        for arm in context.arms.values():
            shutil.rmtree(arm.run.folder / CUDA_CACHE, ignore_errors=True)  # gigabytes, on a GPU newer than the build
    finally:
        for arm in context.arms.values():
            arm.executor.close()


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

    @property
    def name(self) -> str:
        """What distinguishes the cell from the others of its block."""
        return f"{self.step.arm} {self.step.cell.settings.backend}:{self.step.cell.settings.workload}".strip()


_Ended = tuple[_Trial, Outcome]


class _Campaign:
    """One start of the runner over its steps."""

    def __init__(self, context: MeasurementContext) -> None:
        self._context = context
        self._next_attempt: Counter[tuple[str, str, int]] = Counter()
        for name, arm in context.arms.items():
            self._next_attempt.update({(name, r.cell_id, r.repeat): r.attempt + 1 for r in arm.run.load()[0]})
        self._tried: Counter[tuple[str, str, int]] = Counter()
        self._disturbed: set[tuple[str, str, int]] = set()
        self._compared = 0
        self._replaced = 0
        self._started: list[_Trial] = []

    def block(self, steps: Sequence[Step]) -> None:
        """Measure one block, comparison after comparison."""
        for name, arm in self._context.arms.items():
            # An external command brings its own program: no server is to be started for it, no backend to be missed.
            arm.executor.begin_block([s.cell.settings for s in steps if s.arm == name and s.cell.task is None])
        for arm in self._context.arms.values():
            arm.executor.await_block()
        for _, group in itertools.groupby(steps, key=lambda step: calibration_group(step.cell.settings)):
            comparison = list(group)
            self._compared += 1
            self.compare(comparison)
            self._replace_disturbed(comparison)

    def _replace_disturbed(self, steps: Sequence[Step]) -> None:
        """Measure a comparison's block again, whole, where the machine was disturbed from outside; a few times at most.

        The disturbed attempts stay in the store; of each repeat the latest attempt counts.
        """
        for _ in range(MOST_REPLACEMENTS):
            spent = self._replaced >= max(SURELY_REPLACED, REPLACED_SHARE * self._compared)
            if spent or not any(step.key in self._disturbed for step in steps):
                return
            self._replaced += 1
            self._disturbed -= {step.key for step in steps}
            for step in steps:
                self._tried[step.key] = 0
            self.compare(steps)

    def compare(self, steps: Sequence[Step]) -> None:
        """Measure one repeat of cells that differ in their backend or arm only: side by side, epoch by epoch in turn.

        What the infrastructure spoiled is tried again, alone.
        """
        self._started = []
        calibrated = self._calibrate(steps) if self._needs_calibration(steps[0]) else {}
        ended: list[_Ended] = []
        warm: list[_Trial] = []
        for step in steps:
            if step.key in calibrated and calibrated[step.key] is None:
                continue
            if warm and not self._has_room(warm, step.cell):
                ended += self._take_turns(warm)
                warm = []
            trial = calibrated.get(step.key) or self._begin(step)
            if trial is not None:
                trial.running.turn()
                warm.append(trial)
        done = self._publish_all([*ended, *self._take_turns(warm)])
        over = {step.key for step in done} | {key for key, trial in calibrated.items() if trial is None}
        for step in steps:
            if step.key not in over:
                self._repeat(step)

    def _take_turns(self, trials: Sequence[_Trial]) -> list[_Ended]:
        """Run the kept epochs of warm processes in turn, then let each end."""
        if not trials:
            return []
        self._context.observer.taking_turns([trial.step for trial in trials])
        settings = trials[0].job.settings
        for epoch in range(settings.epochs - settings.discard):
            # Back and forth, so that a steady drift of the machine favours none.
            for trial in reversed(trials) if epoch % 2 else trials:
                trial.running.turn(self._waiting(trial))
        return [(trial, trial.running.finish()) for trial in trials]

    def _waiting(self, working: _Trial) -> list[WaitingCell]:
        """Return the comparison's cells that are alive and wait while this one works."""
        others = [trial for trial in self._started if trial is not working]
        waiting = [trial for trial in others if self._contract(trial).local_pids]
        return [WaitingCell(trial.name, root) for trial in waiting if (root := trial.running.root()) is not None]

    def _publish_all(self, ended: Sequence[_Ended]) -> list[Step]:
        """Publish the records of a block's processes, with what disturbed them all; return the steps that are done.

        Judged together even where they did not live side by side: judged alone, the short ones would be thrown out more
        often.
        """
        is_disturbed, outcomes = judged_together([(trial.name, outcome) for trial, outcome in ended])
        done = []
        for (trial, _), outcome in zip(ended, outcomes, strict=True):
            record = self._publish(trial.step, trial.job, outcome, trial.started_at)
            if record.status is not Status.INFRA:
                done.append(trial.step)
            if is_disturbed and record.status in MEASURED:
                self._disturbed.add(trial.step.key)
        return done

    def _has_room(self, warm: Sequence[_Trial], cell: Cell) -> bool:
        """Return whether one more process may stay alive beside these: an accelerator cannot hold several at once."""
        if cell.settings.device != "cpu":
            return False
        if not self._contract(warm[0]).local_machine:
            return True
        free_bytes = free_memory_bytes()
        largest = max(trial.running.resident_bytes() for trial in warm)
        return free_bytes is None or free_bytes > ROOM_FACTOR * largest

    def _contract(self, trial: _Trial) -> Contract:
        return self._context.arms[trial.step.arm].contract

    def _needs_calibration(self, step: Step) -> bool:
        settings = step.cell.settings
        automatic = settings.steps_per_epoch == "auto" or settings.compile_cache == "warm"
        return automatic and self._calibration(step) is None

    def _calibration(self, step: Step) -> dict[str, Any] | None:
        """Return what was found for this comparison, in whichever arm it was kept."""
        group = calibration_group(step.cell.settings)
        for arm in self._context.arms.values():
            if found := arm.run.calibration(group):
                return found
        return None

    def _calibrate(self, steps: Sequence[Step]) -> dict[tuple[str, str, int], _Trial | None]:
        """Find the steps per epoch that these cells share.

        Each process goes as far as its step time and rests there; when all have told theirs, they are told how many
        steps an epoch has. With a warm start it ends there instead: what is measured must have found a full cache.
        Return, for the steps whose process may go on, that process, and None for those that ended meanwhile and need
        not be tried again.
        """
        times_s: dict[str, float] = {}
        found: dict[tuple[str, str, int], _Trial | None] = {}
        for step in steps:
            if self._missing(step):
                continue
            trial = self._start(step, None)
            if not isinstance(trial.running, Never):
                self._context.observer.calibrating(step.cell)
            step_time_s = trial.running.calibrated()
            if step_time_s is None:
                if self._end(trial):
                    found[step.key] = None
                continue
            times_s[f"{step.arm} {step.cell.settings.backend}".strip()] = step_time_s
            if step.cell.settings.compile_cache == "cold" and self._has_room([trial], step.cell):
                found[step.key] = trial
            else:
                self._abandon(trial)
        if times_s:
            kept = {"step_time_s": times_s, "steps_per_epoch": steps_for(times_s.values())}
            for arm in {step.arm for step in steps}:
                self._context.arms[arm].run.store_calibration(calibration_group(steps[0].cell.settings), kept)
        for waiting in found.values():
            if waiting is not None:
                waiting.running.resume(self._steps_per_epoch(waiting.step))
        return found

    def _missing(self, step: Step) -> str | None:
        settings = step.cell.settings
        if step.cell.task is not None:
            return None
        return self._context.arms[step.arm].executor.missing(settings.backend, settings.device)

    def _begin(self, step: Step) -> _Trial | None:
        """Start a repeat with its steps; None, with its record, where its backend is missing."""
        self._context.observer.begun(step)
        if missing := self._missing(step):
            self._publish(step, self._job(step, 1), Outcome(infrastructure=missing), self._context.now())
            self._tried[step.key] = INFRA_ATTEMPTS
            return None
        return self._start(step, self._steps_per_epoch(step))

    def _repeat(self, step: Step) -> None:
        """Measure one repeat alone, as often as the infrastructure spoils it and no oftener than is of use."""
        while self._tried[step.key] < INFRA_ATTEMPTS:
            trial = self._begin(step)
            if trial is not None and self._end(trial):
                return

    def _steps_per_epoch(self, step: Step) -> int:
        settings = step.cell.settings
        asked, chunk = settings.steps_per_epoch, settings.steps_per_execution
        if asked == "seed":
            count = math.ceil(settings.samples / settings.batch_size)
        elif asked == "auto":
            count = int((self._calibration(step) or {}).get("steps_per_epoch", 1))
        else:
            count = int(asked)
        return math.ceil(count / chunk) * chunk

    def _start(self, step: Step, count: int | None) -> _Trial:
        job = self._job(step, count)
        started_at = self._context.now()
        executor = self._context.arms[step.arm].executor
        trial = _Trial(step, job, executor.start(job, step.cell.timeout_s), started_at)
        self._started.append(trial)
        return trial

    def _end(self, trial: _Trial) -> list[Step]:
        """Wait for a process's end and publish its record; return the step, or nothing where it must be tried again."""
        return self._publish_all([(trial, trial.running.finish())])

    def _abandon(self, trial: _Trial) -> None:
        trial.running.abandon()
        shutil.rmtree(trial.job.folder, ignore_errors=True)

    def _publish(self, step: Step, job: Job, outcome: Outcome, started_at: datetime) -> Record:
        arm = self._context.arms[step.arm]
        run = arm.run
        if problem := arm.contract.problem(outcome):
            outcome = Outcome(infrastructure=problem, wall_time_s=outcome.wall_time_s)
        record = record_of(run.run_id, self._context.machine, job, (outcome, started_at))
        if job.trace is not None:
            from keras_matrix.runner.measure.traces import with_trace_kept  # a run without traces does without

            record = with_trace_kept(run, job, record)
        if self._context.log_dir is not None and record.status is not Status.INFRA:
            from keras_matrix.runner.measure.tensorboard.writer import Attempt, written

            record = written(Attempt(record, outcome.course, job), self._context.log_dir)
        shutil.rmtree(job.folder, ignore_errors=True)
        self._next_attempt[step.key] += 1
        self._tried[step.key] += 1
        if outcome.course is not None:
            run.store_usage_series(record, outcome.course)
        run.publish(record)
        self._context.observer.ended(step, record)
        return record

    def _job(self, step: Step, count: int | None) -> Job:
        settings, arm = step.cell.settings, self._context.arms[step.arm]
        attempt = self._next_attempt[step.key]
        name = f"{step.cell.cell_id}.{step.repeat}.{attempt}"
        folder = arm.run.scratch(name)
        return Job(
            nonce=secrets.token_hex(16),
            cell_id=step.cell.cell_id,
            repeat=step.repeat,
            attempt=attempt,
            settings=settings,
            steps=count,
            folder=str(folder.absolute()),
            import_roots=self._context.import_roots,
            dataset_dir=self._context.dataset_dir,
            compile_cache_dir=compile_cache(arm.run, settings),
            fault=arm.fault,
            autotune_dir=autotuned(arm.run, step.cell),
            cuda_cache_dir=cuda_cache(arm.run, step.cell),
            steps_held=step.cell.steps_held,
            task=step.cell.task,
            outputs_dir=made(arm.run.folder / "outputs" / name) if step.cell.task else None,
            trace=step.cell.trace if step.repeat == TRACED_REPEAT else None,
            board=self._context.log_dir is not None and step.cell.task is None,
        )
