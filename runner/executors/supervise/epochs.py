"""The machine's activity during the measured epochs of one process, and the run's own share of it.

The run is everything below the runner: the working cell, the waiting cells, the servers, and their containers.

Independent of the epochs' durations: counters are read when an epoch begins and ends, without the cell's own times.
`analysis.surroundings.disturbance` derives from them what disturbed a block from outside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_matrix.analysis.surroundings.disturbance import (
    OTHER_CPU_LIMIT,
    MeasuredStretch,
    OwnUse,
    WaitingUse,
    busy_neighbours,
    other_cpu_share,
    stall_share,
    steal_share,
    together,
)
from keras_matrix.analysis.surroundings.readings import Process
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.host.system import usable_memory_bytes
from keras_matrix.records.schema import Surroundings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import WaitingCell
from keras_matrix.runner.executors.supervise.environment import allowed_cpus
from keras_matrix.runner.executors.supervise.visible_gpus import gpus_if_visible
from keras_matrix.runner.machine import tree_memory
from keras_matrix.runner.machine.gpus.readings import CellGpus
from keras_matrix.runner.machine.surroundings.counters import Counters, Sampler, moved, since
from keras_matrix.runner.machine.surroundings.snapshot import (
    ProcessStat,
    cpu_now,
    others,
    own_now,
    own_since,
    processes,
    read_line,
)

# Reading every process of the machine takes milliseconds: done while all cells rest, and not after each short epoch.
SCAN_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Alive:
    """The run's processes while a cell works: the cell's process, the root of its process tree, the waiting cells."""

    pid: int
    root: int
    waiting: Sequence[WaitingCell] = ()

    @property
    def resting(self) -> list[WaitingCell]:
        """The cells that do not work meanwhile."""
        return [cell for cell in self.waiting if not cell.works]

    @property
    def roots(self) -> set[int]:
        """The roots of the run's process trees. Containers are not below the runner."""
        return {os.getpid(), self.root, *(cell.root for cell in self.waiting)}


class Epochs:
    """The readings of a process's measured epochs. `begin` and `end` alternate; `close` closes the counters."""

    def __init__(self, job: Job) -> None:
        self._left = job.settings.epochs - job.settings.discard
        self._sampler = Sampler(allowed_cpus(job.settings) or PLATFORM.usable_cpus())
        self._tree = ProcTree()
        self._usable_bytes = usable_memory_bytes(self._tree)
        self.gpus = CellGpus(gpus_if_visible(job.settings, job.gpus))
        # The readings before an epoch: the last are the CPU times of the waiting cells.
        self._begun: tuple[Alive, Counters, OwnUse, list[float | None]] | None = None
        self._scans = _Scans(self._tree)
        self.watched: list[MeasuredStretch] = []

    def begin(self, alive_processes: Alive) -> bool:
        """Note that the process continues; return whether with a measured epoch, since one was left."""
        if self._left <= 0:
            return False
        self._left -= 1
        alive_processes = replace(
            alive_processes, waiting=[cell for cell in alive_processes.waiting if read_line(self._tree, cell.root)]
        )
        self._scans.begin()
        self.gpus.begin()
        self._begun = (
            alive_processes,
            self._sampler.read(),
            self._own(alive_processes),
            self._waiting_s(alive_processes),
        )
        self.gpus.go()
        return True

    def end(self) -> None:
        """Note that the process rests again, or has ended."""
        if self._begun is None:
            return
        (alive_processes, counters, own_before, waiting_s), self._begun = self._begun, None
        self.gpus.end()
        stretch, own_use = since(counters, self._sampler.read()), own_since(own_before, self._own(alive_processes))
        ends_s = zip(alive_processes.resting, waiting_s, self._waiting_s(alive_processes), strict=True)
        waiting_uses = [WaitingUse(cell.name, moved(*ends)) for cell, *ends in ends_s]
        self.watched.append(MeasuredStretch(stretch, own_use, tuple(waiting_uses)))
        self._scans.end(alive_processes.roots, is_last=self._left <= 0)

    def gpu_figures(self) -> dict[str, Any]:
        """Return the fields of a record's surroundings about the GPUs."""
        first_gpu, *further_gpus = self.gpus.epochs() or [None]
        return {
            "gpu": first_gpu,
            "further_gpus": [gpu_epochs for gpu_epochs in further_gpus if gpu_epochs is not None],
            "gpu_unread": self.gpus.unread,
        }

    def close(self) -> None:
        """Close the counters."""
        self._sampler.close()

    @property
    def others(self) -> tuple[Process, ...]:
        """The processes outside the run that used most CPU since the first measured epoch began."""
        return self._scans.others

    def _own(self, alive_processes: Alive) -> OwnUse:
        own_use = own_now(self._tree, below(alive_processes.roots), self._usable_bytes)
        if own_use.cpu_s is None:  # one ended between the listing and the reading: its usage has moved to its parent
            own_use = own_now(self._tree, below(alive_processes.roots), self._usable_bytes)
        # The CPU time and storage of an ended process moved to its parent; the memory it had is not reported.
        return own_use if read_line(self._tree, alive_processes.pid) else replace(own_use, memory_share=None)

    def _waiting_s(self, alive_processes: Alive) -> list[float | None]:
        return [cpu_now(self._tree, below({cell.root})) for cell in alive_processes.resting]


class _Scans:
    """Reads all processes of the machine, to name those outside the run that used its CPUs."""

    def __init__(self, tree: ProcTree) -> None:
        self._tree = tree
        self._first: tuple[float, Mapping[int, ProcessStat] | Unread] | None = None
        self._scanned_s = 0.0
        self.others: tuple[Process, ...] = ()

    def begin(self) -> None:
        """Scan before the first epoch."""
        if self._first is None:
            self._first = time.perf_counter(), processes(self._tree)
            self._scanned_s = self._first[0]

    def end(self, own_pids: Collection[int], *, is_last: bool) -> None:
        """Scan after the last epoch, and if `SCAN_INTERVAL_S` has passed since the last scan."""
        now_s = time.perf_counter()
        if self._first is None or not (is_last or now_s - self._scanned_s >= SCAN_INTERVAL_S):
            return
        begun_s, processes_before = self._first
        other_processes = others(processes_before, processes(self._tree), own_pids, now_s - begun_s)
        self.others = () if isinstance(other_processes, Unread) else other_processes
        self._scanned_s = now_s


def below(root_pids: Collection[int]) -> set[int]:
    """Return these processes and everything below them."""
    return {pid for root_pid in root_pids for pid in tree_memory.tree(root_pid)}


def surroundings(epochs: Epochs, load: tuple[float | None, float | None]) -> Surroundings:
    """Return the record's surroundings of these epochs; `load` is the load average before and after."""
    combined = together(epochs.watched)
    if combined is None:
        return Surroundings(*load, gpu_unread=epochs.gpu_figures()["gpu_unread"])
    stretch, others_share = combined.stretch, other_cpu_share(combined)
    is_busy = others_share is not None and others_share > OTHER_CPU_LIMIT
    return Surroundings(
        load_before=load[0],
        load_after=load[1],
        steal_share=steal_share(stretch),
        other_cpu_share=others_share,
        busiest_process=str(epochs.others[0]) if is_busy and epochs.others else None,
        busy_neighbours=[str(neighbour) for neighbour in busy_neighbours(epochs.watched)],
        cpu_pressure_share=stall_share(stretch.cpu_some_s, stretch),
        memory_stall_share=stall_share(stretch.memory_full_s, stretch),
        io_stall_share=stall_share(stretch.io_full_s, stretch),
        throttle_events=stretch.throttle_events,
        quota_throttled_time_s=stretch.quota_throttled_s,
        **epochs.gpu_figures(),
    )
