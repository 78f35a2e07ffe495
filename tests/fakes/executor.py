"""A fake executor: the full command line runs with synthetic durations, without a backend.

main(["--matrix", "matrix.yaml"], Seams(executor=FakeExecutor()))
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.records.backends import BACKENDS, TRAINING_BACKENDS
from keras_matrix.records.epoch_figures import timed_epochs_s
from keras_matrix.records.fc import spec
from keras_matrix.records.host import device_lists
from keras_matrix.records.injected_faults import parse, scattered_share
from keras_matrix.records.instruments.usage import MemoryUse, Usage, UsageSeries
from keras_matrix.records.instruments.work_done import Counts, StepCounts, WorkDone, WorkStretch
from keras_matrix.records.schema import SCHEMA_VERSION, CellResult, DeviceProof, Learning, Memory, Resolved, Times
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import UPTIME, Compute, Goal, Metric, Task, TaskRun
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Phase, Span, Track, TrackKind
from keras_matrix.records.traces.request import TRACE_NAME, Traced
from keras_matrix.runner.cell.job import Job, write_result
from keras_matrix.runner.executors import Outcome, Running, TaskObservation, WaitingCell

Behaviour = Callable[[Job], Outcome]
# The model that every pretended cell describes, and what every pretended process uses.
LAYERS = {
    "class_name": "Sequential",
    "config": {"name": "model", "layers": [{"class_name": "Dense", "config": {"name": f"dense_{n}"}} for n in (1, 2)]},
}
_MEMORY = MemoryUse(400 << 20, 1 << 20, 500 << 20, 10, 500 << 20)
PRETENDED = Outcome(
    usage=Usage(1.0, 0.1, "processes", host_anonymous=_MEMORY, host_resident=_MEMORY),
    usage_series=UsageSeries(
        times_s=[0.0, 0.1, 0.2],
        host_anonymous_bytes=[100 << 20, 500 << 20, 400 << 20],
        host_resident_bytes=[100 << 20, 500 << 20, 400 << 20],
        epochs_s=[[0.1, 0.2]],
    ),
)


def pretended_step_time_s(settings: Settings, repeat: int) -> float:
    """Return a step time that depends on backend and repeat only: TensorFlow 10 ms, JAX 20 ms, PyTorch 40 ms, +-1 %."""
    base_s = {"tensorflow": 0.010, "jax": 0.020, "torch": 0.040, "openvino": 0.005}[settings.backend]
    return base_s * (1 + 0.01 * ((repeat * 7 + len(settings.workload)) % 3 - 1))


def pretended_counts(job: Job) -> Counts:
    """Return counts: three times the Python calls with an injected fault, and C calls that differ by process."""
    factor = 3 if job.fault and not job.fault.startswith("slower:0.0") else 1
    first = StepCounts(1000.0 * factor, 500.0, 4096.0 + job.repeat, 2.0)
    later = replace(first, c_calls=400.0 + job.repeat, programs=0.0)
    return Counts("sys.setprofile", "3.11.2", 4, first, later, "no counter")


@dataclass(slots=True)
class FakeExecutor:
    """Writes the result a cell would, at once.

    `behaviours` maps a workload to what happens instead; `absent` names backends that are not installed, by default
    those that do not train. `jobs` records what was finished, `abandoned` what was ended at its calibration, `turns`
    whose turn it was, `blocks` how many blocks were begun.
    """

    step_time_s: Callable[[Settings, int], float] = pretended_step_time_s
    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    absent: frozenset[str] = frozenset(BACKENDS).difference(TRAINING_BACKENDS)
    jobs: list[Job] = field(default_factory=list)
    blocks: int = 0
    abandoned: list[Job] = field(default_factory=list)
    timeouts_s: list[float] = field(default_factory=list)
    turns: list[Job] = field(default_factory=list)
    resident_bytes: int = 500 << 20
    closed: bool = False
    waited_for: bool = True
    name: str = "fake"

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Say which backends are not installed."""
        return f"backend_not_installed: {backend}" if backend in self.absent else None

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Count the block."""
        self.blocks += 1
        self.waited_for = False

    def await_block(self) -> None:
        """Note that the block was waited for."""
        self.waited_for = True

    def start(self, job: Job, timeout_s: float) -> Running:
        """Pretend to start a process."""
        assert self.waited_for, "nothing may be measured while servers still start"
        self.timeouts_s.append(timeout_s)
        return FakeRunning(self, job)

    def end(self, job: Job) -> Outcome:
        """Do as the workload's behaviour says, by default write a result."""
        self.jobs.append(job)
        behaviour = self.behaviours.get(job.settings.workload)
        return behaviour(job) if behaviour else self.succeed(job)

    def close(self) -> None:
        """Note that it was let go of."""
        self.closed = True

    def succeed(self, job: Job) -> Outcome:
        """Write a result with pretended durations; a command has pretended metrics."""
        if job.task is not None:
            return _pretended_task(job, job.task)
        write_result(job, _traced(job, self.result(job)))
        if job.board:
            job.model_path.write_text(json.dumps(LAYERS), encoding="utf-8")
        return replace(PRETENDED, exit_code=0, wall_time_s=1.0, start_time_s=0.1, parent_cpu_time_s=0.001)

    def result(self, job: Job) -> CellResult:
        """Return a complete result for a job."""
        pretended = _Pretended(self.step_time_s(job.settings, job.repeat))
        if job.fault:
            pretended = _faulty(pretended, job)
        step_s = pretended.step_s
        empty = CellResult(SCHEMA_VERSION, job.nonce, job.cell_id, job.repeat, job.attempt)
        if job.counting:
            return replace(empty, counts=pretended_counts(job))
        proved = replace(empty, device=DeviceProof(job.settings.device, "fake:0", 1, "fake"))
        steps = job.steps or 1
        kept = job.settings.epochs - job.settings.discard
        return replace(
            proved,
            resolved=Resolved(
                steps_per_epoch=steps,
                seed_steps_per_epoch=32,
                start="fork",
                precision="float32",
                affinity=_affinity(job.settings.cpus),
                parameters=1000,
                recompiles_timed=steps * kept // pretended.every if pretended.every else 0,
                forward_flops=round(1e6 * pretended.work) if job.repeat == 0 else None,
            ),
            times=_slow_at_first(_times(step_s, steps, kept, job.settings), pretended.first),
            learning=Learning(loss=[1.0 / (epoch + 1) for epoch in range(job.settings.epochs)]),
            memory=Memory(peak_host_memory_bytes=500 << 20),
            versions={"python": "3", "keras": "3", job.settings.backend: "1"},
            parallel=_parallel(spec.problem_of(job.settings)) if spec.is_native(job.settings) else None,
            work=None if spec.is_native(job.settings) else work_as_asked(job.settings, steps),
        )


@dataclass(slots=True)
class FakeRunning:
    """A pretended process: calibrated at once, ended when it is asked for."""

    executor: FakeExecutor
    job: Job

    def calibrated(self) -> float | None:
        """Return the pretended step time, unless the steps were given or the workload misbehaves."""
        if self.job.steps is not None or self.job.settings.workload in self.executor.behaviours:
            return None
        return self.executor.step_time_s(self.job.settings, self.job.repeat)

    def resume(self, steps: int) -> None:
        """Take the steps."""
        self.job = replace(self.job, steps=steps)

    def root(self) -> int | None:
        """There is no process."""
        return None

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Note whose turn it was; a process that misbehaves does so at its end."""
        self.executor.turns.append(self.job)
        return True

    def resident_bytes(self) -> int:
        """Return a pretended size."""
        return self.executor.resident_bytes

    def finish(self) -> Outcome:
        """End as the executor pretends."""
        return self.executor.end(self.job)

    def kill(self) -> None:
        """There is no process."""

    def abandon(self) -> None:
        """Note who was ended."""
        self.executor.abandoned.append(self.job)


def _pretended_task(job: Job, task: Task) -> Outcome:
    """Return the end of a command whose metrics are 100 and more, by the length of its words and the repeat."""
    value = 100.0 + sum(map(len, task.command)) * (1 + 0.01 * (job.repeat % 3))
    metrics = [Metric(one.name, value, one.unit, one.compute, one.goal, 10) for one in task.metrics]
    uptime = Metric(UPTIME, value / 100, "s", Compute.LAST, Goal.LOWER, 1)
    run = TaskRun(task.name, task.command, task.primary, [*metrics, uptime], 1000)
    seen = replace(PRETENDED, exit_code=0, wall_time_s=value / 100, task=TaskObservation(run))
    return replace(seen, peak_tree_memory_bytes=500 << 20)


def _traced(job: Job, result: CellResult) -> CellResult:
    """Return the result with a pretended trace, where one was asked for: of each step a product, then a gap."""
    if job.trace is None:
        return result
    count = job.trace.all_steps
    spans = [span for step in range(1, count + 1) for span in _pretended_step(step)]
    job.traced_path.mkdir()
    head = neutral.Head(job.settings.backend, 1, job.settings.device, count, len(job.trace.epochs))
    neutral.write(job.traced_path / TRACE_NAME, head, spans)
    return replace(result, trace=Traced(count, job.traced_path.name, native_bytes=1000))


def _pretended_step(number: int) -> list[Span]:
    """Return a step of 4 ms, of which 3 are a product in the forward pass of a layer."""
    begin_ns = number * 4_000_000
    return [
        Span(Track(0, TrackKind.STEPS), f"step {number}", "step", begin_ns, 4_000_000, step=number),
        Span(Track(0, TrackKind.COMPUTE), "mm", "mm", begin_ns, 3_000_000, Phase.FORWARD, "dense", number),
    ]


def crash(number: int = signal.SIGSEGV) -> Behaviour:
    """Return a behaviour: the process ends by a signal."""
    return lambda job: Outcome(signal=number, wall_time_s=0.5)


def spoil(times: int) -> Behaviour:
    """Return a behaviour: the infrastructure fails so many times, then a result is written."""
    seen: list[Job] = []

    def behave(job: Job) -> Outcome:
        seen.append(job)
        if len(seen) <= times:
            return Outcome(infrastructure="server: pretended to be gone")
        return FakeExecutor().succeed(job)

    return behave


@dataclass(slots=True)
class FailsAt(FakeExecutor):
    """Whose processes with these numbers, counted from 1, behave otherwise: by default they crash."""

    numbers: Collection[int] = ()
    behaviour: Behaviour = field(default_factory=crash)

    def end(self, job: Job) -> Outcome:
        """Behave otherwise if it is the turn of such a process."""
        if len(self.jobs) + 1 not in self.numbers:
            return FakeExecutor.end(self, job)
        self.jobs.append(job)
        return self.behaviour(job)


def work_as_asked(settings: Settings, steps: int) -> WorkDone:
    """Return what a process counts that did all that it was asked for."""
    epochs, samples = settings.epochs, steps * settings.batch_size
    trains = settings.phase == "fit"
    updates: list[int | None] = [steps if trains else None] * epochs
    stretch = WorkStretch("epochs", steps, epochs, updates, [samples] * epochs, [0] * epochs, steps * epochs, 4)
    return WorkDone(
        stretches=[stretch],
        updates_per_step=1.0 if trains else None,
        samples_per_step=float(settings.batch_size),
        batches_drawn=steps * epochs,
        skipped_updates=0,
        trainable_variables=2,
        changed_variables=2 if trains else None,
        optimizer_state_changed=trains or None,
        weight_platforms=[settings.device],
    )


def _parallel(task: spec.FcProblem) -> spec.Parallel:
    places = [spec.WorkerPlacement(k, f"fake:{k}", *spec.expected_shapes(task, k)) for k in range(task.workers)]
    return spec.parallel_of(task, places, spec.traffic_per_step(task), [])


def _affinity(asked: int | str) -> str | None:
    return device_lists.cpu_text(range(asked)) if isinstance(asked, int) else None if asked == "all" else asked


def _samples(settings: Settings) -> int:
    return spec.problem_of(settings).samples_per_step if spec.is_native(settings) else settings.batch_size


def _times(step_s: float, steps: int, kept: int, settings: Settings) -> Times:
    epoch_s = step_s * steps
    return Times(
        import_time_s=1.0,
        build_time_s=0.1,
        first_step_time_s=0.5,
        first_epoch_time_s=epoch_s + 0.5 if settings.discard else None,
        discarded_epoch_times_s=[epoch_s + 0.5 * (epoch == 0) for epoch in range(settings.discard)],
        epoch_times_s=[epoch_s] * kept,
        epoch_time_median_s=epoch_s,
        epoch_time_mean_s=epoch_s,
        epoch_time_p95_s=epoch_s,
        step_time_s=step_s,
        samples_per_s=_samples(settings) / step_s,
        steps_per_s=1 / step_s,
        training_time_s=epoch_s * settings.epochs + 0.5,
    )


@dataclass(frozen=True, slots=True)
class _Pretended:
    """What a pretended process shows: a step in seconds; work and first epoch as multiples; steps to a recompile."""

    step_s: float
    work: float = 1.0
    first: float = 1.0
    every: int = 0


def _faulty(plain: _Pretended, job: Job) -> _Pretended:
    """Return a pretended process with the job's fault: a copy takes 1 ms a MiB, a recompile 100 ms."""
    kind, value = parse(job.fault or "")
    share = scattered_share(value, job.repeat) if kind == "variance" else value
    if kind in ("slower", "variance"):
        return replace(plain, step_s=plain.step_s * (1 + share), work=1 + share)
    if kind == "copy":
        return replace(plain, step_s=plain.step_s + value * 1e-3)
    if kind == "recompile":
        return replace(plain, step_s=plain.step_s + 0.1 / value, every=int(value))
    return replace(plain, first=1 + value)


def _slow_at_first(times: Times, multiple: float) -> Times:
    first_s = times.first_epoch_time_s
    if first_s is None:
        return times
    discarded_s = [first_s * multiple, *times.discarded_epoch_times_s[1:]]
    total_s = timed_epochs_s(replace(times, discarded_epoch_times_s=discarded_s))
    return replace(
        times, first_epoch_time_s=discarded_s[0], discarded_epoch_times_s=discarded_s, training_time_s=total_s
    )
