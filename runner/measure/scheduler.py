"""Runs the planned repeats: each repeat in its own process, each attempt as one record.

The records of a comparison's block are published together, after all of its processes have ended, since disturbance of
the machine is judged for the full block.

It uses the seams (`Executor`, the store, an observer) and the pure parts (plan, judge), not the terminal or flags.
"""

from __future__ import annotations

import itertools
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from keras_matrix.analysis.surroundings.disturbance import cause_of, disturbed, share_while_waiting
from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.records.host.system import free_memory_bytes
from keras_matrix.records.schema import MEASURED, Machine, Record, Status
from keras_matrix.records.settings import Settings, is_users
from keras_matrix.records.store import Run
from keras_matrix.records.trees import remove_tree
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Contract, Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.evidence import LostGpus
from keras_matrix.runner.measure.observer import Observer
from keras_matrix.runner.measure.record_builder import record_of, with_changes
from keras_matrix.runner.plan.plan import PlannedRepeat, calibration_group, longest_epoch_s, steps_for

if TYPE_CHECKING:
    from keras_matrix.runner.executors.preflight import Preflight

MOST_REPLACEMENTS = 1
# Share of a session's blocks: a machine that disturbs more of them always does, and repeating only doubles the cost.
REPLACED_SHARE, SURELY_REPLACED = 0.25, 2
# Free memory that is required before a further process is started, relative to the largest process so far.
ROOM_FACTOR = 2
# All processes of a cell do the same work; one of them is traced.
TRACED_REPEAT = 0
INFRA_ATTEMPTS = 3
# The folder of a run for the driver's cache of its GPU cells, until the run is finished.
CUDA_CACHE = "cuda-cache"
Key: TypeAlias = tuple[str, str, int]
"""Arm, cell_id and number of a repeat."""


def utc_now() -> datetime:
    """Return the wall-clock time: for labels and ages in days, never for a duration that is measured."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Arm:
    """The run that stores an arm's records and the executor of its cells; `fault` is injected into workloads.

    `preflight` refuses cells before they start and adds warnings. `import_roots`, if any, replace the context's.
    """

    run: Run
    executor: Executor
    fault: str | None = None
    contract: Contract = Contract()
    preflight: Preflight | None = None
    import_roots: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MeasurementContext:
    """The arms by name, the observer, and this machine. `log_dir` is the folder for TensorBoard, None for no files."""

    arms: Mapping[str, Arm]
    observer: Observer
    machine: Machine
    import_roots: list[str] = field(default_factory=list)
    dataset_dir: str | None = None
    downloads: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    now: Callable[[], datetime] = utc_now
    usable: Callable[[], bool] = lambda: True  # whether cells can start: at a lost machine each fails
    gpus: GpuChoice | None = None  # those of a place; None for each cell's own
    collect: Callable[[], object] = lambda: None  # called between two comparisons
    again: bool = True  # whether a disturbed block is measured again


def measure(
    context: MeasurementContext,
    repeats: Iterable[PlannedRepeat],
    more_repeats: Callable[[], list[PlannedRepeat]] = list,
) -> None:
    """Measure `repeats` in their order and publish a record of every attempt; then the blocks `more_repeats` returns.

    Raises `Interrupted` on a signal, with no process left running, and `StoreFailure` if a record cannot be stored.
    """
    scheduler = Scheduler(context)
    try:
        for _, block in itertools.groupby(repeats, key=lambda planned: planned.repeat):
            scheduler.block(list(block))
        while further_repeats := more_repeats():
            scheduler.block(further_repeats)
        remove_kernels(arm.run for arm in context.arms.values())
    finally:
        for arm in context.arms.values():
            arm.executor.close()


@dataclass(frozen=True, slots=True)
class _Trial:
    """A process that was started for a planned repeat, with its job and the warnings of the preflight."""

    arm: Arm
    planned: PlannedRepeat
    job: Job
    running: Running
    started_at: datetime
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The text that distinguishes the cell from the others of its block."""
        return f"{self.planned.arm} {self.planned.cell.settings.backend}:{self.planned.cell.settings.workload}".strip()

    def finish(self) -> _Ended:
        """Wait for the end of the process, and return its outcome."""
        outcome = self.running.finish()
        return self, replace(outcome, warnings=(*self.warnings, *outcome.warnings))


_Ended: TypeAlias = tuple[_Trial, Outcome]
_Found: TypeAlias = dict[Key, _Trial | None]


def _failed_process(trials: Sequence[_Trial], records: Sequence[Record]) -> str | None:
    """Return which process of a block failed and how, None if all were measured or lost by the infrastructure."""
    for trial, record in zip(trials, records, strict=True):
        if record.status not in MEASURED and record.status is not Status.INFRA:
            return f"{trial.name} ended as {record.status}"
    return None


def _without_pair(record: Record, failed: str | None) -> Record:
    """Return the record of a second try; what was measured in it counts only if no other process `failed`.

    One arm's first try against the other's second would be a disturbed block against an undisturbed one.
    """
    if failed is None or record.status not in MEASURED:
        return record
    reason = f"second_try: {failed} when the disturbed block was measured again, so that the first try counts for all"
    return replace(record, status=Status.INFRA, reason=reason)


class Scheduler:
    """Runs repeats, one comparison after the other, of one start of the runner; several may share their `attempts`."""

    def __init__(self, context: MeasurementContext, attempts: Attempts | None = None) -> None:
        self._context = context
        self._attempts = attempts or Attempts({name: arm.run for name, arm in context.arms.items()})
        self._disturbed: set[Key] = set()
        self._compared = self._replaced = 0
        self._started: list[_Trial] = []
        self._lost_gpus = LostGpus()

    def block(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Measure a block, one comparison after the other."""
        self.begin_block(repeats)
        for _, group in itertools.groupby(repeats, key=measured_with):
            comparison = list(group)
            for measure_all in (self.compare, self.replace_disturbed):
                for planned in measure_all(comparison):
                    self.repeat(planned)
            self._context.collect()  # now, and not within a measured epoch

    def begin_block(self, repeats: Sequence[PlannedRepeat]) -> None:
        """Prepare the executors for a block of repeats, or for those of it that are known so far."""
        for name, arm in self._context.arms.items():
            # An external command has its own program: it needs no server and no backend.
            arm.executor.begin_block([s.cell.settings for s in repeats if s.arm == name and s.cell.task is None])
        for arm in self._context.arms.values():
            arm.executor.await_block()

    def replace_disturbed(self, repeats: Sequence[PlannedRepeat]) -> list[PlannedRepeat]:
        """Repeat what was measured in a disturbed comparison's block, a few times at most; as `compare`.

        The second try counts, unless a process of it fails: then the first one counts for all of them. A process that
        has failed is not repeated: its end is no timing.
        """
        for _ in range(MOST_REPLACEMENTS if self._context.again else 0):
            is_spent = self._replaced >= max(SURELY_REPLACED, REPLACED_SHARE * self._compared)
            disturbed_repeats = [planned for planned in repeats if planned.key in self._disturbed]
            if is_spent or not disturbed_repeats:
                break
            self._replaced += 1
            self._disturbed -= {planned.key for planned in disturbed_repeats}
            for planned in disturbed_repeats:
                self._attempts.again(planned.key)
            if unmeasured := self._compared_once(disturbed_repeats, is_second_try=True):
                return unmeasured
        return []

    def compare(self, repeats: Sequence[PlannedRepeat]) -> list[PlannedRepeat]:
        """Measure a repeat of a comparison, interleaved.

        Return the repeats that the infrastructure failed and that may be tried again.
        """
        self._compared += 1
        return self._compared_once(repeats)

    def _compared_once(self, repeats: Sequence[PlannedRepeat], is_second_try: bool = False) -> list[PlannedRepeat]:
        self._started = []
        with self._attempts.calibrating(measured_with(repeats[0])):
            uncalibrated = [planned for planned in repeats if self._lacks_calibration(planned)]
            calibrated = self._calibrate(uncalibrated) if uncalibrated else {}
        ended_trials, warm = list[_Ended](), list[_Trial]()
        for planned in repeats:
            if planned.key in calibrated and calibrated[planned.key] is None:
                continue
            if warm and not self._has_room(warm, planned.cell):
                ended_trials += self._interleave(warm)
                warm = []
            trial = calibrated.get(planned.key) or (self._begin(planned) if self._context.usable() else None)
            if trial is not None:
                trial.running.turn()
                warm.append(trial)
        published_repeats = self._publish_all([*ended_trials, *self._interleave(warm)], is_second_try)
        finished_keys = {planned.key for planned in published_repeats} | {
            key for key, trial in calibrated.items() if trial is None
        }
        return [
            planned for planned in repeats if planned.key not in finished_keys and self._attempts.are_left(planned.key)
        ]

    def _interleave(self, trials: Sequence[_Trial]) -> list[_Ended]:
        """Run the measured epochs of warm processes, interleaved, then let each process end."""
        if not trials:
            return []
        self._context.observer.interleaving([trial.planned for trial in trials])
        settings = trials[0].job.settings
        for epoch in range(settings.epochs - settings.discard):
            # Alternating directions cancel a steady drift of the machine.
            for trial in reversed(trials) if epoch % 2 else trials:
                trial.running.turn(self._waiting(trial))
        return [trial.finish() for trial in trials]

    def _waiting(self, working: _Trial) -> list[WaitingCell]:
        """Return the cells of the comparison whose processes wait while this one works."""
        other_trials = [trial for trial in self._started if trial is not working]
        local_trials = [trial for trial in other_trials if trial.arm.contract.local_pids]
        return [WaitingCell(trial.name, root) for trial in local_trials if (root := trial.running.root()) is not None]

    def _publish_all(self, ended_trials: Sequence[_Ended], is_second_try: bool = False) -> list[PlannedRepeat]:
        """Publish the records of a block's processes, with what disturbed all of them; return those that are done.

        Together even if one ran after the other: by themselves, short processes would be discarded more often.
        """
        is_disturbed, outcomes = judged_together([(trial.name, outcome) for trial, outcome in ended_trials])
        trials = [trial for trial, _ in ended_trials]
        judged_outcomes = [self._judged(trial, outcome) for trial, outcome in zip(trials, outcomes, strict=True)]
        failed_name = _failed_process(trials, judged_outcomes) if is_second_try else None
        published_repeats = []
        for trial, outcome, judged_outcome in zip(trials, outcomes, judged_outcomes, strict=True):
            record = self._publish(trial, outcome, _without_pair(judged_outcome, failed_name))
            if record.status is not Status.INFRA or failed_name:
                published_repeats.append(trial.planned)
            if is_disturbed and record.status in MEASURED:
                self._disturbed.add(trial.planned.key)
        return published_repeats

    def _has_room(self, warm: Sequence[_Trial], cell: Cell) -> bool:
        """Return whether a further process may stay alive with these; an accelerator has memory for only one."""
        if cell.settings.device != "cpu":
            return False
        if not warm[0].arm.contract.local_machine:
            return True
        free_bytes = free_memory_bytes()
        largest_bytes = max(trial.running.resident_bytes() for trial in warm)
        return free_bytes is None or free_bytes > ROOM_FACTOR * largest_bytes

    def _calibration(self, planned: PlannedRepeat) -> dict[str, Any] | None:
        """Return the calibration of this comparison, from the first arm that stores one."""
        group = calibration_group(planned.cell)
        return next(filter(None, (arm.run.calibration(group) for arm in self._context.arms.values())), None)

    def _lacks_calibration(self, planned: PlannedRepeat) -> bool:
        settings = planned.cell.settings
        is_automatic = settings.steps_per_epoch == "auto" or settings.compile_cache == "warm"
        return is_automatic and self._calibration(planned) is None

    def _calibrate(self, repeats: Sequence[PlannedRepeat]) -> _Found:
        """Find the steps per epoch that these cells share; of a race, each usual comparison of them has its own.

        Each process measures its step time and then waits; when all have reported it, each gets the number of steps in
        an epoch. With a warm start the process ends instead, since the measured one must find a full cache. Return the
        process of each repeat that continues, None for one that needs no further attempt.
        """
        times_s, trial_by_key = dict[Key, float](), _Found()
        for planned in repeats:
            if self._missing(planned) or not self._context.usable():
                continue
            trial = self._start(planned, None)
            if not isinstance(trial.running, Never):
                self._context.observer.calibrating(planned.cell)
            step_time_s = trial.running.calibrated()
            if step_time_s is None:
                if self._publish_all([trial.finish()]):
                    trial_by_key[planned.key] = None
                continue
            times_s[planned.key] = step_time_s
            if planned.cell.settings.compile_cache == "cold" and self._has_room([trial], planned.cell):
                trial_by_key[planned.key] = trial
            else:
                self._discard(trial)
        return self._agreed(repeats, times_s, trial_by_key)

    def _agreed(self, repeats: Sequence[PlannedRepeat], times_s: Mapping[Key, float], trial_by_key: _Found) -> _Found:
        """Give each waiting process the steps of an epoch, which is stored for later repeats; return what goes on."""
        if not self._context.usable():  # the times of some cells decide nothing
            for started_trial in filter(None, trial_by_key.values()):
                self._discard(started_trial)
            return {key: None for key, trial in trial_by_key.items() if trial is None}
        by_group: dict[str, list[PlannedRepeat]] = {}
        for planned in repeats:
            by_group.setdefault(calibration_group(planned.cell), []).append(planned)
        for group, group_repeats in by_group.items():
            self._store_calibration(group, group_repeats, times_s)
        for waiting_trial in filter(None, trial_by_key.values()):
            waiting_trial.running.resume(self._steps_per_epoch(waiting_trial.planned))
        return trial_by_key

    def _store_calibration(self, group: str, repeats: Sequence[PlannedRepeat], times_s: Mapping[Key, float]) -> None:
        """Store the steps per epoch of a comparison, from the step times of those of its processes that have one."""
        times_by_name: dict[str, list[float]] = {}
        for planned in repeats:
            if planned.key in times_s:
                name = f"{planned.arm} {planned.cell.settings.backend}".strip()
                times_by_name.setdefault(name, []).append(times_s[planned.key])
        if not times_by_name:
            return
        # Of several cells of a backend the fastest counts: it needs the most steps.
        fastest_s = {name: min(own_s) for name, own_s in times_by_name.items()}
        slowest_s = max(itertools.chain.from_iterable(times_by_name.values()))
        limit_s = longest_epoch_s((planned.cell.timeout_s, planned.cell.settings.epochs) for planned in repeats)
        steps = steps_for(fastest_s.values(), slowest_s, limit_s)
        for arm in {planned.arm for planned in repeats}:
            found_steps = {"step_time_s": fastest_s, "steps_per_epoch": steps}
            self._context.arms[arm].run.store_calibration(group, found_steps)

    def _discard(self, trial: _Trial) -> None:
        trial.running.abandon()
        remove_tree(trial.job.folder)

    def _missing(self, planned: PlannedRepeat) -> str | None:
        if planned.cell.task is not None:
            return None
        settings, executor = planned.cell.settings, self._context.arms[planned.arm].executor
        return self._lost_gpus.why_not(settings) or executor.missing(settings.backend, settings.device)

    def _begin(self, planned: PlannedRepeat) -> _Trial | None:
        """Start a repeat; if its backend is missing, publish that and return None."""
        self._context.observer.begun(planned)
        if missing_text := self._missing(planned):
            self._publish_unstarted(planned, Outcome(infrastructure=missing_text))
            self._attempts.exhaust(planned.key)
            return None
        return self._start(planned, self._steps_per_epoch(planned))

    def refuse(self, planned: PlannedRepeat, reason: str) -> None:
        """Publish that a repeat cannot run anywhere, as unsupported."""
        self._publish_unstarted(planned, Outcome(refused=reason))

    def repeat(self, planned: PlannedRepeat) -> None:
        """Measure a repeat by itself, again after infrastructure failures, at most `INFRA_ATTEMPTS` times."""
        while self._attempts.are_left(planned.key):
            trial = self._begin(planned)
            if trial is not None and self._publish_all([trial.finish()]):
                return

    def _steps_per_epoch(self, planned: PlannedRepeat) -> int:
        settings = planned.cell.settings
        steps, chunk = settings.steps_per_epoch, settings.steps_per_execution
        if steps == "seed":
            count = math.ceil(settings.samples / settings.batch_size)
        elif steps == "auto":
            count = int((self._calibration(planned) or {}).get("steps_per_epoch", 1))
        else:
            count = int(steps)
        return math.ceil(count / chunk) * chunk

    def _start(self, planned: PlannedRepeat, count: int | None) -> _Trial:
        job, started_at = self._job(planned, count), self._context.now()
        arm = self._context.arms[planned.arm]
        if refusal := arm.preflight.refused(job) if arm.preflight else None:
            trial = _Trial(arm, planned, job, Never(refusal), started_at)
        else:
            warnings = arm.preflight.warnings(job) if arm.preflight else ()
            trial = _Trial(arm, planned, job, arm.executor.start(job, planned.cell.timeout_s), started_at, warnings)
        self._started.append(trial)
        return trial

    def _publish_unstarted(self, planned: PlannedRepeat, outcome: Outcome) -> None:
        """Publish that no process was started for a repeat, and why."""
        arm = self._context.arms[planned.arm]
        trial = _Trial(arm, planned, self._job(planned, 1), Never(outcome), self._context.now())
        self._publish(trial, outcome, self._judged(trial, outcome))

    def _judged(self, trial: _Trial, outcome: Outcome) -> Record:
        """Return the record of a process that has ended."""
        if problem := trial.arm.contract.problem(outcome):
            outcome = Outcome(infrastructure=problem, wall_time_s=outcome.wall_time_s)
        run_id = trial.arm.run.run_id
        return record_of(run_id, self._context.machine, trial.job, (outcome, trial.started_at))

    def _publish(self, trial: _Trial, outcome: Outcome, judged: Record) -> Record:
        """Publish a record with what its process left; remove its scratch folder."""
        run, planned, job = trial.arm.run, trial.planned, trial.job
        if trial.arm.contract.problem(outcome):
            outcome = Outcome(wall_time_s=outcome.wall_time_s)
        record = with_changes(judged, run.changed_by_others())
        if job.trace is not None:
            from keras_matrix.runner.measure.traces import with_trace_stored  # only a run with traces needs it

            record = with_trace_stored(run, job, record)
        if self._context.log_dir is not None and record.status is not Status.INFRA:
            from keras_matrix.runner.measure.tensorboard import AttemptToWrite, written

            record = written(AttemptToWrite(record, outcome.usage_series, job), self._context.log_dir)
        remove_tree(job.folder)
        self._attempts.ended(planned.key)
        self._lost_gpus.ended(record)
        if outcome.usage_series is not None:
            run.store_usage_series(record, outcome.usage_series)
        run.publish(record)
        self._context.observer.ended(planned, record)
        return record

    def _job(self, planned: PlannedRepeat, count: int | None) -> Job:
        settings, arm = planned.cell.settings, self._context.arms[planned.arm]
        attempt = self._attempts.next(planned.key)
        name = f"{planned.cell.cell_id}.{planned.repeat}.{attempt}"
        return Job(
            nonce=secrets.token_hex(16),
            cell_id=planned.cell.cell_id,
            repeat=planned.repeat,
            attempt=attempt,
            settings=settings,
            steps=count,
            folder=str(arm.run.scratch(name).absolute()),
            import_roots=arm.import_roots or self._context.import_roots,
            dataset_dir=self._context.dataset_dir,
            compile_cache_dir=compile_cache(arm.run, settings),
            fault=arm.fault,
            autotune_dir=autotuned(arm.run, planned.cell),
            cuda_cache_dir=cuda_cache(arm.run, planned.cell),
            steps_held=planned.cell.steps_held,
            task=planned.cell.task,
            outputs_dir=made(arm.run.folder / "outputs" / name) if planned.cell.task else None,
            trace=planned.cell.trace if planned.repeat == TRACED_REPEAT else None,
            board=self._context.log_dir is not None and planned.cell.task is None,
            gpus=self._context.gpus or planned.cell.placement.gpus,
            downloads={**self._context.downloads} if is_users(settings.workload) else {},
        )


def measured_with(planned: PlannedRepeat) -> str:
    """Return what a cell is measured interleaved with: the candidates of its race, else those compared with it."""
    return planned.cell.race or calibration_group(planned.cell)


def judged_together(ended_trials: Sequence[tuple[str, Outcome]]) -> tuple[bool, list[Outcome]]:
    """Return whether a block was disturbed from outside, and its outcomes with the reason, in the same order.

    Each outcome is passed with its cell's name, and is returned with what that cell used while the others worked.
    """
    measured_stretches = [stretch for _, outcome in ended_trials for stretch in outcome.watched or ()]
    reason = disturbed(measured_stretches)
    text = None if reason is None else cause_of(reason, [outcome.surroundings for _, outcome in ended_trials])
    outcomes = []
    for name, outcome in ended_trials:
        share = share_while_waiting(name, measured_stretches)
        surroundings = replace(outcome.surroundings, disturbed=text, waiting_cpu_share=share)
        outcomes.append(replace(outcome, surroundings=surroundings))
    return reason is not None, outcomes


class Attempts:
    """Counts the attempts of each repeat: all that are stored, and those of this start of the runner.

    Several threads may use it, if only one at a time works on a repeat.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        """Read the stored attempts of the run of each arm."""
        self._next: Counter[Key] = Counter()
        for name, run in runs.items():
            self._next.update({(name, r.cell_id, r.repeat): r.attempt + 1 for r in run.load()[0]})
        self._tried: Counter[Key] = Counter()
        # Only while somebody uses it: a run may have thousands of comparisons.
        self._guard, self._calibrating = threading.Lock(), WeakValueDictionary[str, threading.Lock]()

    def calibrating(self, group: str) -> threading.Lock:
        """Return the lock of a comparison's calibration, which only one of its blocks may make."""
        with self._guard:
            return self._calibrating.setdefault(group, threading.Lock())

    def next(self, key: Key) -> int:
        """Return the number of the next attempt."""
        return self._next[key]

    def ended(self, key: Key) -> None:
        """Count an attempt that has ended."""
        self._next[key] += 1
        self._tried[key] += 1

    def exhaust(self, key: Key) -> None:
        """Leave no further attempt to a repeat."""
        self._tried[key] = INFRA_ATTEMPTS

    def again(self, key: Key) -> None:
        """Give a repeat all of its attempts again."""
        self._tried[key] = 0

    def are_left(self, key: Key) -> bool:
        """Return whether a repeat that the infrastructure failed may be tried again."""
        return self._tried[key] < INFRA_ATTEMPTS


# --- The folders that processes of a run share: caches of compilers and of the driver ---------------------------------


def compile_cache(run: Run, settings: Settings) -> str | None:
    """Return the compile cache of a backend's cells; None if each begins with an empty cache."""
    if settings.compile_cache == "cold":
        return None
    return made(run.folder / "compile-cache" / settings.backend)


def autotuned(run: Run, cell: Cell) -> str | None:
    """Return the folder of a cell's autotuning results; None if its repeats do not share them."""
    if cell.settings.autotune != "pinned":
        return None
    return made(run.folder / "autotune" / cell.cell_id)


def cuda_cache(run: Run, cell: Cell) -> str | None:
    """Return the driver's cache of a run's GPU cells; None for a command, which has its own home or the caller's.

    It is used under `compile_cache: cold` too: machine code that a backend compiles is not in the driver's cache.
    """
    is_gpu_cell = cell.settings.device == "gpu" and cell.task is None
    return made(run.folder / CUDA_CACHE) if is_gpu_cell else None


def made(folder: Path) -> str:
    """Return the path of a folder, created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())


def remove_kernels(runs: Iterable[Run]) -> None:
    """Remove the driver's caches of complete runs: gigabytes if the GPU is newer than the build."""
    for run in runs:
        remove_tree(run.folder / CUDA_CACHE)
