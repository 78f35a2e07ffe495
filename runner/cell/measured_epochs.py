"""The context of a cell's measured epochs: its turns, the backend's compilations and memory meanwhile, their figures.

It imports neither Keras nor a backend, as `loop`. Nothing is read or counted between two steps.

The cell's side of interleaving: it rests before each measured epoch until the host lets it continue.

Compared cells are alive at the same time, and only one of them works at a time, so that adjacent epochs of two cells
share the machine's condition. A resting process waits in one read and uses no CPU. Messages are lines on two pipes:

    cell -> host   {"nonce": .., "cpu_s": .., "step_time_s": seconds | null}
    host -> cell   {"steps": number | null}

The first message of a cell without given steps has the time of a step, and the answer has the steps of an epoch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO

from keras_matrix.models.process import settle
from keras_matrix.records.codec import canonical
from keras_matrix.records.epoch_figures import EpochWork, tokens_a_sample, with_figures
from keras_matrix.records.schema import Memory, Resolved, Times
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell import memory
from keras_matrix.runner.cell.backends import BackendAdapter, CompileEvents
from keras_matrix.runner.cell.batches import steps_of_pass
from keras_matrix.runner.cell.clock import monotonic
from keras_matrix.runner.cell.job import Job, Resting
from keras_matrix.runner.cell.loop import EpochLog, Stretch, step_time_by_doubling

CALIBRATION_EPOCH_S = 0.15
MEASURED_EPOCHS, PROCESS = "measured_epochs", "process"


class Compiling:
    """The number of programs that the backend traced or compiled during the measured epochs, and of graph breaks.

    Read before and after these epochs; between them the process rests.
    """

    def __init__(self, adapter: BackendAdapter) -> None:
        self._adapter = adapter
        self._before: tuple[int | None, int | None] = None, None
        self.count: int | None = None
        self.graph_breaks: int | None = None

    def begin(self) -> None:
        """Read before the measured epochs."""
        self._before = self._adapter.compilations(), self._adapter.graph_breaks()

    def end(self) -> None:
        """Read after the measured epochs."""
        self.count = _more(self._before[0], self._adapter.compilations())
        self.graph_breaks = _more(self._before[1], self._adapter.graph_breaks())


def _more(before: int | None, after: int | None) -> int | None:
    """Return a count's growth; a count that began meanwhile grew from 0."""
    return None if after is None else after - (before or 0)


@dataclass(slots=True)
class Allocated:
    """The memory that the framework's allocator has in use on the device, read while it is idle between two epochs.

    `peak_bytes` is its peak at the end of the measured epochs, `peak_span` what that covers: these epochs if the
    backend can reset its peak before them, else the process up to their end. On a CPU all are empty.
    """

    adapter: BackendAdapter
    sizes_bytes: list[int] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_span: str | None = None

    def begin(self) -> None:
        """Reset the peak before the measured epochs."""
        if (is_reset := self.adapter.reset_peak_device_memory()) is not None:
            self.peak_span = MEASURED_EPOCHS if is_reset else PROCESS

    def end(self) -> None:
        """Read after the measured epochs."""
        self.note()
        self.peak_bytes = self.adapter.peak_device_memory_bytes()

    def note(self) -> None:
        """Read it once more, except on a CPU."""
        if (size_bytes := self.adapter.device_memory_bytes()) is not None:
            self.sizes_bytes.append(size_bytes)


@dataclass(frozen=True, slots=True)
class MeasuredEpochs:
    """The context of the measured epochs: the process's turns, the compilations, the device's memory."""

    turns: Turns
    compiling: Compiling
    allocated: Allocated

    def stretch(self, settings: Settings, steps: int) -> Stretch:
        """Return the epochs of a cell: the discarded ones at once, each measured one in its turn."""

        def before(epoch: int) -> None:
            if epoch == settings.discard:
                settle()
                self.compiling.begin()
                self.allocated.begin()
            if epoch >= settings.discard:
                self.allocated.note()
                self.turns.rest()

        return Stretch(steps, settings.epochs, settings.discard, before)

    def end(self) -> None:
        """Read after the last measured epoch, and rest."""
        self.compiling.end()
        self.allocated.end()
        self.turns.rest()


def used_memory(allocated: Allocated) -> Memory:
    """Return the memory that the process has used until now."""
    return Memory(memory.peak_resident_bytes(), allocated.peak_bytes, allocated.sizes_bytes, allocated.peak_span)


def with_compilations(resolved: Resolved, events: CompileEvents, compiling: Compiling) -> Resolved:
    """Return the record's part with what the backend compiled."""
    return replace(
        resolved,
        compile_cache_hits=events.cache_hits,
        graph_breaks=events.graph_breaks,
        recompiles_timed=compiling.count,
        graph_breaks_timed=compiling.graph_breaks,
    )


def with_start(times: Times, import_time_s: float, build_time_s: float, events: CompileEvents) -> Times:
    """Return the times with those before the first step, and those of compilation."""
    return replace(
        times,
        import_time_s=import_time_s,
        build_time_s=build_time_s,
        trace_time_s=events.trace_time_s,
        compile_time_s=events.compile_time_s,
    )


class HostGone(RuntimeError):
    """The runner has ended, so that no answer will come."""


def leave_copies(pid: int) -> None:
    """End this process at once if the workload forked it from the cell's process: only one process measures."""
    if os.getpid() != pid:
        os._exit(1)


class Turns:
    """One cell's turns, over the two pipes in its job's folder. The host opened both before the process started."""

    def __init__(self, job: Job) -> None:
        self._nonce, self._pid = job.nonce, os.getpid()
        self._answers: IO[str] = job.resting_path.open("w", encoding="ascii", buffering=1)
        self._orders: IO[str] = job.orders_path.open(encoding="ascii")

    def first_step_ended(self) -> None:
        """Do nothing: a process that counts ends here what it counts of its first step."""

    def rest(self) -> None:
        """Report that this process rests, and return when it is its turn. Raises `HostGone`."""
        self._rest(None)

    def agree_on_steps(self, step_time_s: float) -> int:
        """Report the time of a step, and return the steps of an epoch that the host chose for all compared cells."""
        steps = self._rest(step_time_s)
        if steps is None:
            raise HostGone("the runner sent no steps per epoch")
        return steps

    def _rest(self, step_time_s: float | None) -> int | None:
        leave_copies(self._pid)
        times = os.times()
        cpu_s = times.user + times.system + times.children_user + times.children_system
        self._answers.write(canonical(Resting(self._nonce, cpu_s, step_time_s)) + "\n")
        line = self._orders.readline()
        if not line:
            raise HostGone("the runner has ended")
        steps: int | None = json.loads(line)["steps"]
        return steps


@dataclass(slots=True)
class Timeline:
    """The consecutive parts of a process; durations in seconds."""

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


def agreed(job: Job, turns: Turns, epoch_s: Callable[[int], float]) -> tuple[int, float | None]:
    """Return the steps per epoch, and the seconds of their calibration, None if they were given.

    The steps are whole calls of the backend: a multiple of `steps_per_execution`.
    """
    turns.first_step_ended()
    if job.steps is not None:
        return job.steps, None
    begun_s = monotonic()
    step_time_s = step_time_by_doubling(epoch_s, enough_s=CALIBRATION_EPOCH_S)
    calibration_s = monotonic() - begun_s
    chunk = job.settings.steps_per_execution
    return math.ceil(turns.agree_on_steps(step_time_s) / chunk) * chunk, calibration_s


def epoch_work(settings: Settings, steps: int) -> EpochWork:
    """Return the work of an epoch of so many steps."""
    chunk, passes = settings.steps_per_execution, steps_of_pass(settings)
    return EpochWork(steps, settings.batch_size, passes, chunk, settings.phase, tokens_a_sample(settings))


def summarise(epoch_times_s: list[float], short_times_s: list[float], settings: Settings, steps: int) -> Times:
    """Turn epoch times into the record's figures. Pure.

    `epoch_times_s` has every epoch of `steps` steps, discarded ones first; `short_times_s` the measured epochs of the
    second length, and may be empty.
    """
    times = Times(
        discarded_epoch_times_s=epoch_times_s[: settings.discard],
        epoch_times_s=epoch_times_s[settings.discard :],
        short_epoch_times_s=short_times_s,
    )
    return with_figures(times, epoch_work(settings, steps))
