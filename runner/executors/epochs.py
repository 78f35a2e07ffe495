"""What the machine did during the kept epochs of one process, and what the run itself used of it meanwhile.

Blind to what the epochs took: it is told when one begins and when it has ended, reads counters, and knows no times of
the cell's. What disturbed a block from outside follows from it (`analysis.surroundings.disturbance`).
"""

from __future__ import annotations

import os

from analysis.surroundings.disturbance import (
    OwnUse,
    Watched,
    other_cpu_share,
    stall_share,
    steal_share,
    together,
)
from records.schema import Surroundings
from runner.cell.job import Job
from runner.executors import process_tree
from runner.executors.environment import allowed_cpus, visible_gpu
from runner.surroundings.counters import Counters, Sampler, since
from runner.surroundings.memory import usable_bytes
from runner.surroundings.nvml import GpuReading, Nvml, opened, over_epochs
from runner.surroundings.own import own_now, own_since
from runner.surroundings.tree import Tree


class Epochs:
    """The stretches of a process's kept epochs. `begin` and `end` come in turn; `close` lets go of the counters."""

    def __init__(self, job: Job) -> None:
        self._left = job.settings.epochs - job.settings.discard
        self._sampler = Sampler(allowed_cpus(job.settings) or os.sched_getaffinity(0))
        self._tree = Tree()
        self._usable_bytes = usable_bytes(self._tree)
        self._gpu = opened(visible_gpu()) if job.settings.device == "gpu" else None
        self._gpu_before: GpuReading | None = None
        self._begun: tuple[Counters, OwnUse] | None = None
        self.watched: list[Watched] = []
        self.gpu_ends: list[tuple[GpuReading, GpuReading]] = []

    def begin(self, pid: int) -> bool:
        """The process goes on; return whether that is with a kept epoch, since one was left."""
        if self._left <= 0:
            return False
        self._left -= 1
        self._gpu_before = self._gpu.read() if isinstance(self._gpu, Nvml) else None
        self._begun = self._sampler.read(), self._own(pid)
        return True

    def end(self, pid: int) -> None:
        """The process rests again, or has ended."""
        if self._begun is None:
            return
        counters, own = self._begun
        self._begun = None
        self.watched.append(Watched(since(counters, self._sampler.read()), own_since(own, self._own(pid))))
        if self._gpu_before is not None and isinstance(self._gpu, Nvml):
            self.gpu_ends.append((self._gpu_before, self._gpu.read()))

    @property
    def gpus(self) -> tuple[Nvml, ...]:
        """The GPU of the process, where it has one that can be read."""
        return (self._gpu,) if isinstance(self._gpu, Nvml) else ()

    def close(self) -> None:
        """Let go of the counters."""
        self._sampler.close()

    def _own(self, pid: int) -> OwnUse:
        return own_now(self._tree, [*process_tree.tree(pid), os.getpid()], self._usable_bytes)


def surroundings(epochs: Epochs, load: tuple[float, float]) -> Surroundings:
    """Return what a record says of these epochs; `load` is the load average before and after."""
    whole = together(epochs.watched)
    if whole is None:
        return Surroundings(*load)
    stretch = whole.stretch
    return Surroundings(
        load_before=load[0],
        load_after=load[1],
        steal_share=steal_share(stretch),
        other_cpu_share=other_cpu_share(whole),
        cpu_pressure_share=stall_share(stretch.cpu_some_s, stretch),
        memory_stall_share=stall_share(stretch.memory_full_s, stretch),
        io_stall_share=stall_share(stretch.io_full_s, stretch),
        throttle_events=stretch.throttle_events,
        quota_throttled_time_s=stretch.quota_throttled_s,
        gpu=over_epochs(epochs.gpu_ends),
    )
