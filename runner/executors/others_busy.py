"""An executor that keeps the machine's other devices busy while a cell is measured, for the self test of that.

Each other device repeats epochs of the same cell, from before a measured epoch of the cell until after it; between
them it rests, like the cell itself. A device is a GPU (or as many as the cell needs), on a CPU a set of as many CPUs.

Limit: the others run the same work at a steady pace; they neither start nor compile during a measured epoch.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.records.host import device_lists
from keras_matrix.records.host.device_lists import ANY_GPU, GpuChoice
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.supervise.visible_gpus import GpusUnavailable, Present, gpus_needed, usable_gpus
from keras_matrix.runner.executors.supervise.watch import Never
from keras_matrix.runner.machine.gpus.nvml import present_gpus
from keras_matrix.runner.machine.surroundings.processors import pinned

# More epochs than a cell may have: the others are ended, they never finish.
EPOCHS = 10_000
# A process that keeps another device busy waits longer than the cell itself.
PATIENCE = 4


@dataclass(frozen=True, slots=True)
class NeighbourDevice:
    """A device next to the cell's own: what to change in its settings, and its GPUs."""

    cpus: int | str
    gpus: GpuChoice


def other_devices(settings: Settings, choice: GpuChoice = ANY_GPU, present: Present = None) -> list[NeighbourDevice]:
    """Return the other devices of this machine on which a cell fits; empty if there is none."""
    if settings.device == "gpu":
        return [
            NeighbourDevice(settings.cpus, GpuChoice(",".join(gpus))) for gpus in _other_gpus(settings, choice, present)
        ]
    allowed_cpus = sorted(PLATFORM.usable_cpus())
    own_cpus = pinned(settings.cpus, ProcTree(), allowed_cpus) or allowed_cpus
    free_cpus, set_size = [cpu for cpu in allowed_cpus if cpu not in own_cpus], len(own_cpus)
    sets = [free_cpus[end - set_size : end] for end in range(set_size, len(free_cpus) + 1, set_size)]
    return [NeighbourDevice(device_lists.cpu_text(cpu_set), ANY_GPU) for cpu_set in sets]


def half_of_cpus() -> str:
    """Return the first half of the CPUs of this process, for a cell that would use all; all of them if it is one."""
    allowed_cpus = sorted(PLATFORM.usable_cpus())
    return device_lists.cpu_text(allowed_cpus[: max(1, len(allowed_cpus) // 2)])


class OthersBusy:
    """Measures as `inner` does; `make` returns an executor for each other device."""

    def __init__(self, inner: Executor, make: Callable[[], Executor]) -> None:
        self.name, self._inner, self._make = inner.name, inner, make
        self._others: list[Executor] = []

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Pass it on."""
        return self._inner.missing(backend, device)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block everywhere; the others start what they need with their first process."""
        self._inner.begin_block(settings)
        for other in self._others:
            other.begin_block([])

    def await_block(self) -> None:
        """Pass it on."""
        for executor in (self._inner, *self._others):
            executor.await_block()

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job; the others start once it has warmed up."""
        running = self._inner.start(job, timeout_s)
        return running if isinstance(running, Never) else _AmongOthers(running, self, (job, timeout_s))

    def start_others(self, job: Job, timeout_s: float) -> list[Running]:
        """Start a process of the same work on each other device."""
        devices = other_devices(job.settings, job.gpus, present_gpus() if job.settings.device == "gpu" else None)
        while len(self._others) < len(devices):
            self._others.append(self._make())
            self._others[-1].begin_block([])
            self._others[-1].await_block()
        jobs = [_companion(job, device, number) for number, device in enumerate(devices)]
        pairs = zip(self._others, jobs, strict=False)
        return [executor.start(other_job, PATIENCE * timeout_s) for executor, other_job in pairs]

    def close(self) -> None:
        """Close all executors."""
        for executor in (self._inner, *self._others):
            executor.close()


class _AmongOthers:
    """A cell's process, whose measured epochs run while the others work."""

    def __init__(self, inner: Running, owner: OthersBusy, work: tuple[Job, float]) -> None:
        self._inner, self._owner = inner, owner
        self._job, self._timeout_s = work
        self._others: list[Running] | None = None
        self._failed: str | None = None

    def calibrated(self) -> float | None:
        """Pass it on."""
        return self._inner.calibrated()

    def resume(self, steps: int) -> None:
        """Pass the steps on, to the others too."""
        self._job = replace(self._job, steps=steps)
        self._inner.resume(steps)

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Warm up at the first turn, the others after the cell; then measure an epoch while they work."""
        if self._others is not None:
            with self._working():
                return self._inner.turn(waiting)
        is_alive = self._inner.turn(waiting)
        self._others = self._owner.start_others(self._job, self._timeout_s)
        for other in self._others:
            if not other.turn():
                self._failed = self._failed or "it ended before its first measured epoch"
        return is_alive

    def root(self) -> int | None:
        """Pass it on."""
        return self._inner.root()

    def resident_bytes(self) -> int:
        """Pass it on."""
        return self._inner.resident_bytes()

    def finish(self) -> Outcome:
        """End the others, and return the outcome; it is no measurement if one of them did not work.

        A repeat that is measured by itself, such as another attempt, had no turns: it gets them here.
        """
        if self._others is None:
            settings = self._job.settings
            for _ in range(1 + settings.epochs - settings.discard):
                self.turn()
        outcome = self._inner.finish()
        self._end_others()
        if self._failed is not None:
            return Outcome(infrastructure=f"others_busy: a process on another device did not work: {self._failed}")
        return outcome

    def abandon(self) -> None:
        """End all processes."""
        self._inner.abandon()
        self._end_others()

    def kill(self) -> None:
        """Kill all processes."""
        for running in (self._inner, *(self._others or ())):
            running.kill()

    def _end_others(self) -> None:
        for other in self._others or ():
            other.abandon()
        self._others = []

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Within, each other process runs one epoch after the other; afterwards all of them rest."""
        end_event, begun = threading.Event(), threading.Barrier(len(self._others or ()) + 1)
        threads = [
            threading.Thread(target=self._repeat, args=(o, end_event, begun), daemon=True) for o in self._others or ()
        ]
        for thread in threads:
            thread.start()
        begun.wait()
        try:
            yield
        finally:
            end_event.set()
            for thread in threads:
                thread.join()

    def _repeat(self, other: Running, end_event: threading.Event, begun: threading.Barrier) -> None:
        begun.wait()
        try:
            while not end_event.is_set():
                if not other.turn():
                    self._failed = "it ended during the measured epochs"
                    return
        except Exception as error:  # noqa: BLE001 - whatever it was, the device rested during a measured epoch
            self._failed = f"{type(error).__name__}: {error}"


def _companion(job: Job, device: NeighbourDevice, number: int) -> Job:
    """Return the job of a process that works on another device; its result is of no interest."""
    folder = Path(f"{job.folder}.{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return replace(
        job,
        nonce=secrets.token_hex(16),
        settings=replace(job.settings, cpus=device.cpus, epochs=EPOCHS),
        folder=str(folder),
        gpus=device.gpus,
        trace=None,
        board=False,
    )


def _other_gpus(settings: Settings, choice: GpuChoice, present: Present) -> list[tuple[str, ...]]:
    caller: Mapping[str, str] = os.environ
    try:
        gpu_names, group_size = usable_gpus(choice, caller, present), gpus_needed(settings)
    except GpusUnavailable:
        return []
    groups = [gpu_names[end - group_size : end] for end in range(group_size, len(gpu_names) + 1, group_size)]
    return groups[1:]
