"""One cell, inside its process: configure, prove the device, build, train or predict, and say what was seen."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.faults import Circumstances, plant
from models.registry import Built, Request, load
from records import cpu_list
from records.schema import SCHEMA_VERSION, CellResult, DeviceProof, Learning, Memory, Resolved, Times
from records.settings import Settings
from runner.cell import backends, memory
from runner.cell.backends import Batch, CompileEvents, Plug
from runner.cell.batches import make_batches, seed_steps
from runner.cell.clock import monotonic
from runner.cell.job import Job, keep_tuning, publish_figures
from runner.cell.kept import Allocated, Compiling, Kept
from runner.cell.loop import EpochLog, Stretch, fit_epochs, predict_epochs, step_time_by_doubling
from runner.cell.turns import Turns
from runner.cell.work import work_done

CALIBRATION_EPOCH_S = 0.15
SHORT_EPOCH_SHARE = 8
# The second epoch length costs up to a third of a process's time and gives secondary figures: one process pays for it.
SECOND_LENGTH_REPEAT = 0


class DeviceMismatch(Exception):
    """The device that was asked for is not where tensors are placed."""


def measure(job: Job, import_time_s: float, start: str) -> CellResult:
    """Do the job and return its result.

    Raises whatever the workload raises, `Unsupported`, or `DeviceMismatch` before anything is timed.
    """
    settings = job.settings
    plug = backends.load(settings.backend)
    plug.configure(settings, job.compile_cache_dir)
    configure_keras(settings)
    seed_all(plug, settings.seed)
    device = prove(plug, settings)
    begun_s = monotonic()
    built = build(job)
    first = make_batches(built, settings, settings.steps_per_execution)
    build_time_s = monotonic() - begun_s
    kept = Kept(Turns(job), Compiling(plug), Allocated(plug))
    work = (Predicting if settings.phase == "predict" else Training)(built, plug, job, kept)
    times, learning, steps = work.run(first)
    events = plug.compile_events()
    times = with_start(times, import_time_s, build_time_s, events)
    keep_tuning(job)
    held = Memory(memory.peak_resident_bytes(), plug.peak_device_memory_bytes(), kept.allocated.sizes_bytes)
    resolved = replace(
        _resolved(job, built, plug, (start, steps)),
        compile_cache_hits=events.cache_hits,
        graph_breaks=events.graph_breaks,
        recompiles_timed=kept.compiling.count,
    )
    result = replace(
        result_of(job, device, times),
        resolved=replace(resolved, **work_done(job, built, first[0])),
        learning=learning,
        memory=held,
        versions=found_versions(plug),
    )
    publish_figures(job, result)
    leave_for_board(job, work)
    return with_trace_of(job, result, work)


def leave_for_board(job: Job, work: Training | Predicting) -> None:
    """Leave what TensorBoard is to show, where that was asked for."""
    if job.board:
        from runner.cell.board import leave

        leave(job, work.model.to_json, lambda calls: work.again(Stretch(calls * work.steps_a_call, 1)))


def with_trace_of(job: Job, result: CellResult, work: Training | Predicting) -> CellResult:
    """Return the result, with a trace where that was asked for."""
    if job.trace is None:
        return result
    from runner.cell.tracing import with_trace
    from runner.cell.tracing.workload import TracedWorkload

    return with_trace(job, job.trace, result, TracedWorkload(work, job.settings))


def configure_keras(settings: Settings) -> None:
    """Set what Keras itself decides: layout and precision."""
    import keras

    keras.config.set_image_data_format("channels_last")
    keras.config.set_floatx(settings.precision if settings.precision in ("float64", "bfloat16") else "float32")
    keras.config.set_dtype_policy(settings.precision)


def seed_all(plug: Plug, seed: int) -> None:
    """Seed everything a workload draws from.

    `keras.utils.set_random_seed` also imports TensorFlow wherever it is installed, which costs a JAX or PyTorch cell
    1.8 s. Keras draws its own seeds from Python's generator, so that seeding the generators is enough.
    """
    random.seed(seed)
    np.random.seed(seed)
    plug.seed(seed)


def prove(plug: Plug, settings: Settings) -> DeviceProof:
    """Return where tensors lie. Raises `DeviceMismatch` where that is not what was asked."""
    proof = plug.proof()
    if proof.platform != settings.device:
        raise DeviceMismatch(
            f"device: {settings.device} was asked for, but {settings.backend} places tensors on {proof.name}; is there "
            f"such a device, and is the build of {settings.backend} for it installed?"
        )
    return proof


def build(job: Job) -> Built:
    """Return the job's workload, built, with its settings of compilation."""
    settings = job.settings
    params = {**settings.params}
    request = Request(params=params, data=settings.data, dataset_dir=job.dataset_dir)
    built = load(settings.workload)(request)
    if job.fault is not None:
        built = plant(built, job.fault, Circumstances(settings, job.repeat, monotonic))
    model = built.model
    model.steps_per_execution = settings.steps_per_execution
    if settings.eager:
        model.run_eagerly = True
        model.jit_compile = False
    elif settings.jit != "auto":
        model.jit_compile = settings.jit
    elif settings.league == "matched":
        model.jit_compile = True
    return built


@dataclass(slots=True)
class Timeline:
    """What a process did, one after another; durations in seconds."""

    first_step_s: float
    calibration_s: float | None
    steps: int
    epochs: EpochLog
    short: EpochLog = field(default_factory=EpochLog)

    def times(self, settings: Settings) -> Times:
        """Return the record's figures."""
        epochs_s = [self.first_step_s + self.epochs.times_s[0], *self.epochs.times_s[1:]]
        if not settings.discard:
            epochs_s = self.epochs.times_s
        return replace(
            summarise(epochs_s, self.short.times_s[1:], settings, self.steps),
            first_step_time_s=self.first_step_s,
            calibration_time_s=self.calibration_s,
            training_time_s=self.first_step_s
            + (self.calibration_s or 0.0)
            + sum(self.epochs.times_s)
            + sum(self.short.times_s),
        )


def unchanged(source: Any) -> Any:
    """Return the source of batches as it is."""
    return source


class Training:
    """Epochs of `fit`."""

    def __init__(self, built: Built, plug: Plug, job: Job, kept: Kept) -> None:
        self._built, self._plug, self._job, self._kept = built, plug, job, kept
        self.model, self.steps_a_call = built.model, job.settings.steps_per_execution
        self._fed: Any = None

    def run(self, first: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Take the first step, agree on the steps per epoch, train; return what was seen and the steps."""
        settings, chunk = self._job.settings, self._job.settings.steps_per_execution
        source = self._source(first)
        first_step_s = self._fit(source, Stretch(chunk, 1)).times_s[0]
        steps, calibration_s = agreed(
            self._job, self._kept.turns, lambda count: min(self._fit(source, Stretch(count * chunk, 2)).times_s) / chunk
        )
        self._fed = source = self._source(make_batches(self._built, settings, steps))
        log = self._fit(source, self._kept.stretch(settings, steps))
        self._kept.end()
        seen = Timeline(first_step_s, calibration_s, steps, log)
        short_steps = short_epoch_steps(settings, steps)
        if short_steps is not None and self._job.repeat == SECOND_LENGTH_REPEAT:
            seen.short = self._fit(source, Stretch(short_steps, 1 + settings.epochs - settings.discard))
        return seen.times(settings), _learning(seen.epochs), steps

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Train more epochs from the same batches, in the source that `change` makes of theirs; nothing is kept."""
        self._fit(change(self._fed), stretch)

    def _fit(self, source: Any, stretch: Stretch) -> EpochLog:
        return fit_epochs(self._built.model, source, self._plug, stretch)

    def _source(self, batches: Sequence[Batch]) -> Any:
        """Return the endless source `fit` draws from: resident on the device, or fed from host memory at each step."""
        if self._job.settings.feed == "device_resident":
            return self._plug.endless([self._plug.resident(batch) for batch in batches])
        return backends.round_and_round(batches)


class Predicting:
    """Epochs of calls of `predict_on_batch`."""

    def __init__(self, built: Built, plug: Plug, job: Job, kept: Kept) -> None:
        self._built, self._plug, self._job, self._kept = built, plug, job, kept
        self.model, self.steps_a_call = built.model, 1
        self._fed: list[Batch] = []

    def run(self, first: Sequence[Batch]) -> tuple[Times, Learning, int]:
        """Make the first call, agree on the calls per epoch, predict; return what was seen and the calls."""
        settings, model = self._job.settings, self._built.model
        placed = self._placed(first)
        first_call_s = predict_epochs(model, placed, Stretch(1, 1, 1)).epoch_times_s[0]
        calls, calibration_s = agreed(
            self._job,
            self._kept.turns,
            lambda count: min(predict_epochs(model, placed, Stretch(count, 2)).epoch_times_s),
        )
        self._fed = placed = self._placed(make_batches(self._built, settings, calls))
        log = predict_epochs(model, placed, self._kept.stretch(settings, calls))
        self._kept.end()
        times = Timeline(first_call_s, calibration_s, calls, EpochLog(log.epoch_times_s)).times(settings)
        p50, p99 = (float(np.percentile(log.call_times_s, rank)) for rank in (50, 99))
        return replace(times, call_time_p50_s=p50, call_time_p99_s=p99), Learning(), calls

    def again(self, stretch: Stretch, change: Callable[[Any], Any] = unchanged) -> None:
        """Predict more epochs on the same batches, as `change` makes them; nothing is kept."""
        predict_epochs(self.model, change(self._fed), stretch)

    def _placed(self, batches: Sequence[Batch]) -> list[Batch]:
        if self._job.settings.feed == "device_resident":
            return [self._plug.resident(batch) for batch in batches]
        return list(batches)


def agreed(job: Job, turns: Turns, epoch_s: Callable[[int], float]) -> tuple[int, float | None]:
    """Return the steps per epoch, and the seconds it took to find out; None where they were given."""
    if job.steps is not None:
        return job.steps, None
    begun_s = monotonic()
    step_time_s = step_time_by_doubling(epoch_s, enough_s=CALIBRATION_EPOCH_S)
    calibration_s = monotonic() - begun_s
    return turns.agree_on_steps(step_time_s), calibration_s


def short_epoch_steps(settings: Settings, steps: int) -> int | None:
    """Return the steps of the second epoch length, None where an epoch is too short to have one.

    One pass over the samples where that is at most half an epoch, so that it also gives the seed's figure; else an
    eighth of an epoch.
    """
    passes = seed_steps(settings)
    chunk = settings.steps_per_execution
    if passes <= steps // 2 and passes % chunk == 0:
        return passes
    return steps // SHORT_EPOCH_SHARE // chunk * chunk or None


def summarise(epoch_times_s: list[float], short_times_s: list[float], settings: Settings, steps: int) -> Times:
    """Turn epoch times into the record's figures. Pure.

    `epoch_times_s` holds every epoch of `steps` steps, discarded ones first; `short_times_s` the kept epochs of the
    second length, possibly none.
    """
    kept = epoch_times_s[settings.discard :]
    mean_s, median_s = statistics.fmean(kept), statistics.median(kept)
    short_steps = short_epoch_steps(settings, steps) if short_times_s else None
    times = Times(
        first_epoch_time_s=epoch_times_s[0] if settings.discard else None,
        discarded_epoch_times_s=epoch_times_s[: settings.discard],
        epoch_times_s=kept,
        epoch_time_median_s=median_s,
        epoch_time_mean_s=mean_s,
        epoch_time_p95_s=float(np.percentile(kept, 95)),
        step_time_s=mean_s / steps,
        samples_per_s=steps * settings.batch_size / mean_s,
        steps_per_s=steps / mean_s,
        short_epoch_steps=short_steps,
        short_epoch_times_s=short_times_s,
        seed_total_time_s=_seed_total(kept, short_times_s, settings, steps),
    )
    if short_steps is None:
        return times
    short_s = statistics.median(short_times_s)
    slope_s = (median_s - short_s) / (steps - short_steps)
    return replace(times, fixed_time_per_epoch_s=short_s - short_steps * slope_s)


def _seed_total(kept: list[float], short: list[float], settings: Settings, steps: int) -> float | None:
    if settings.phase != "fit":
        return None
    passes = seed_steps(settings)
    if passes == steps:
        return sum(kept)
    return sum(short) if short and short_epoch_steps(settings, steps) == passes else None


def _learning(log: EpochLog) -> Learning:
    names = [name for name in (log.logs[0] if log.logs else {}) if name != "loss"]
    return Learning(
        loss=[entry["loss"] for entry in log.logs if "loss" in entry],
        metrics={name: [entry.get(name) for entry in log.logs] for name in names},
    )


def _resolved(job: Job, built: Built, plug: Plug, run: tuple[str, int]) -> Resolved:
    import keras

    model = built.model
    return replace(
        resolved_of(job.settings, plug, run),
        precision=keras.config.dtype_policy().name,
        jit_compile=bool(model.jit_compile) and not model.run_eagerly,
        image_data_format=keras.config.image_data_format(),
        data_is_real=built.data_is_real,
    )


def resolved_of(settings: Settings, plug: Plug, run: tuple[str, int]) -> Resolved:
    """Return what backend and machine tell of any cell; `run` is how its process started, and its steps per epoch."""
    start, steps = run
    return Resolved(
        steps_per_epoch=steps,
        seed_steps_per_epoch=seed_steps(settings),
        start=start,
        precision=settings.precision,
        tf32=plug.tf32(),
        intra_op_threads=plug.intra_op_threads(),
        cpus=len(os.sched_getaffinity(0)),
        affinity=cpu_list.text(os.sched_getaffinity(0)),
    )


def with_start(times: Times, import_time_s: float, build_time_s: float, events: CompileEvents) -> Times:
    """Return the times with what came before the first step, and what compiling took."""
    return replace(
        times,
        import_time_s=import_time_s,
        build_time_s=build_time_s,
        trace_time_s=events.trace_time_s,
        compile_time_s=events.compile_time_s,
    )


def found_versions(plug: Plug) -> dict[str, str]:
    """Return the versions of Python, Keras, NumPy and the backend."""
    found = {"python": platform.python_version(), **plug.versions()}
    for package in ("keras", "numpy"):
        found[package] = importlib.metadata.version(package)
    return found


def result_of(job: Job, device: DeviceProof, times: Times) -> CellResult:
    """Return the result of this job's process, to be filled in."""
    return CellResult(
        schema_version=SCHEMA_VERSION,
        nonce=job.nonce,
        cell_id=job.cell_id,
        repeat=job.repeat,
        attempt=job.attempt,
        device=device,
        times=times,
    )
