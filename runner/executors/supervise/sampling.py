"""What one process and its device use while it works, sampled by its parent, ten times a second.

    use = Sampling(pid, gpus)              # gpus: those of the cell; empty on a CPU
    while it works: use.sample(at_s)
    use.begin(at_s) ... use.end(at_s)      around each stretch that counts
    use.over()                             later samples (counting FLOPs, a profile) are in the series alone
    use.usage(), use.series()

Nothing is done inside the process, and nothing expensive while it works: the proportional set size, which walks every
page under the process's lock, is read while it rests, and only as long as that took no more than `PSS_SHARE` of its
time. What the driver or the kernel does not report is None. Utilisation is the driver's average over its last period,
up to one second (nvmlUtilization_t in nvml.h): a sample counts for a stretch only a second after it began. The memory
of the samples is bounded, however long the process runs.

A module of its own: it is a seam, which tests drive without a process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import reduce
from typing import Any, TypeVar

from keras_matrix.records.instruments.usage import MOST_POINTS, MemoryUse, PowerUse, ShareUse, Usage, UsageSeries
from keras_matrix.runner.machine.cpu_energy import CpuEnergy
from keras_matrix.runner.machine.gpus.readings import GpuUse, ReadableGpu, Unreadable
from keras_matrix.runner.machine.surroundings.counters import total
from keras_matrix.runner.machine.tree_memory import GroupMemory, TreeMemory

SAMPLE_S = 0.1
PSS_SHARE = 0.005
UTILISATION_PERIOD_S = 1.0
# Readings of memory in the measured epochs that are stored; beyond this every second one is dropped.
MOST_READINGS = 1024
Number = int | float
U = TypeVar("U", ShareUse, PowerUse)


class Pace:
    """When the next sample is due."""

    def __init__(self, interval_s: float = SAMPLE_S, first_s: float = 0.0) -> None:
        """Take the interval between samples, and the clock's time of the first: by default at once."""
        self.interval_s = interval_s
        self._next_s = first_s

    def wait_s(self, now_s: float) -> float:
        """Return the time until the next sample."""
        return min(self.interval_s, max(0.0, self._next_s - now_s))

    def due(self, now_s: float) -> bool:
        """Return whether a sample is due; if so the next one is an interval later."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self.interval_s
        return True


class Spread:
    """Adds up values (Welford, "Note on a method for calculating corrected sums of squares", 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self._squares = 0.0
        self.most: Number = -math.inf

    @property
    def deviation(self) -> float:
        """The standard deviation of the values, of which there must be at least one."""
        return math.sqrt(self._squares / self.count)

    def add(self, value: Number) -> None:
        """Add one value."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)
        self.most = max(self.most, value)


class SampledQuantity:
    """One quantity over a process's life, and over the stretches that count."""

    def __init__(self) -> None:
        self._life, self._counted = Spread(), Spread()

    @property
    def peak(self) -> Number | None:
        """The largest value of the entire life; None without one."""
        return self._life.most if self._life.count else None

    def add(self, value: Number | None, *, counts: bool) -> None:
        """Add a value unless it is None; `counts` states whether it is within a stretch that counts."""
        if value is not None:
            self._life.add(value)
            if counts:
                self._counted.add(value)

    def memory(self) -> MemoryUse | None:
        """Return it as memory."""
        summary = self._shown()
        return (
            MemoryUse(summary.mean, summary.deviation, int(summary.most), summary.count, int(self._life.most))
            if summary.count
            else None
        )

    def use(self, kind: type[U], *, counted_only: bool = False) -> U | None:
        """Return it as a share or a power; with `counted_only` None for a process without a stretch that counts."""
        summary = self._counted if counted_only else self._shown()
        return kind(summary.mean, summary.deviation, summary.most, summary.count) if summary.count else None

    def _shown(self) -> Spread:
        """Return the values of the stretches that count; of the entire life of a process without such a stretch."""
        return self._counted if self._counted.count else self._life


# The values of a sample, with the names of a `UsageSeries`: two of the host, then those of `GpuUse` in its order.
COLUMNS = (
    "host_anonymous_bytes",
    "host_resident_bytes",
    "device_memory_bytes",
    "device_process_memory_bytes",
    "device_utilisation_share",
    "device_power_w",
)
UTILISATION = "device_utilisation_share"


class Thinned:
    """At most `MOST_POINTS` points: neighbours are merged, with the largest value of each quantity."""

    def __init__(self) -> None:
        self._points: list[tuple[float, tuple[Number | None, ...]]] = []
        self._samples_a_point = 1
        self._in_last = 0

    def add(self, at_s: float, values: tuple[Number | None, ...]) -> None:
        """Add one sample."""
        if self._points and self._in_last < self._samples_a_point:
            begun_s, known_values = self._points[-1]
            self._points[-1] = begun_s, _largest(known_values, values)
            self._in_last += 1
            return
        if len(self._points) == MOST_POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(first[0], _largest(first[1], second[1])) for first, second in pairs]
            self._samples_a_point *= 2
        self._points.append((at_s, values))
        self._in_last = 1

    def series(self, epochs_s: Sequence[tuple[float, float]]) -> UsageSeries | None:
        """Return the points; None without one."""
        if not self._points:
            return None
        columns = zip(*(values for _, values in self._points), strict=True)
        known_columns = {
            name: list(c) for name, c in zip(COLUMNS, columns, strict=True) if any(v is not None for v in c)
        }
        times_s = [round(at_s, 3) for at_s, _ in self._points]
        return UsageSeries(times_s, epochs_s=[[round(x, 3) for x in ends] for ends in epochs_s], **known_columns)


class EpochMemory:
    """The anonymous memory in and around the stretches that count, by the stretches done so far.

    A reading within a stretch is placed by its share of the stretch's time. Those around stretches are made while the
    process rests. Their number is bounded, however long the process runs.
    """

    def __init__(self) -> None:
        self._done: list[tuple[float, int]] = []
        self._within: list[tuple[float, int]] = []
        self._stretches = 0

    def rest(self, size_bytes: int | None) -> None:
        """Note a reading at rest, before the first stretch or after one."""
        if size_bytes is not None:
            self._done.append((float(self._stretches), size_bytes))

    def within(self, at_s: float, size_bytes: int | None) -> None:
        """Note a reading in the current stretch."""
        if size_bytes is not None:
            self._within.append((at_s, size_bytes))
        if len(self._within) > MOST_READINGS:
            self._within = self._within[::2]

    def end(self, begun_s: float, ended_s: float) -> None:
        """Note the end of the current stretch."""
        if (length_s := ended_s - begun_s) > 0:
            self._done += [
                (self._stretches + (at_s - begun_s) / length_s, memory_bytes) for at_s, memory_bytes in self._within
            ]
        self._within, self._stretches = [], self._stretches + 1
        if len(self._done) > MOST_READINGS:
            self._done = self._done[::2]

    def readings(self) -> tuple[tuple[float, int], ...]:
        """Return the readings in the order of time."""
        return tuple(self._done)


class Sampling:
    """Samples what one process tree and its GPUs use."""

    def __init__(
        self,
        root: int,
        gpus: Sequence[ReadableGpu | Unreadable] = (),
        group: GroupMemory | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cpu_energy: CpuEnergy | None = None,
    ) -> None:
        """Take the first process of the tree, and its control group if that has no other processes.

        Without `cpu_energy` nothing is said about the energy of the CPUs.
        """
        self._tree, self._gpus, self._group, self._clock = TreeMemory(root), gpus, group, clock
        self._cpu_energy = cpu_energy
        self._device_total = SampledQuantity()
        self._quantities = {name: SampledQuantity() for name in COLUMNS}
        self._thinned = Thinned()
        self._in_stretch, self._records = False, True
        self._epochs_s: list[tuple[float, float]] = []
        self._epoch_memory = EpochMemory()
        self._begun_s = self._last_s = self._pss_cost_s = 0.0
        self._sampled_since = False
        self._proportional: list[int | None] = []
        self._energies_before: list[float | None] = []
        self._energy_j: float | None = 0.0
        self._energy_begun_s = self._energy_time_s = 0.0

    @property
    def peak_resident_bytes(self) -> int | None:
        """The largest resident size of all samples."""
        peak = self._quantities["host_resident_bytes"].peak
        return None if peak is None else int(peak)

    def sample(self, at_s: float) -> None:
        """Take one sample; `at_s` is how long the process has worked so far."""
        anonymous, resident = self._host()
        if self._in_stretch:
            self._epoch_memory.within(at_s, anonymous)
        gpus = [gpu.use(self._tree.pids) for gpu in self._gpus]
        samples = [(anonymous, resident, *astuple(gpu)) for gpu in gpus or [GpuUse()]]
        if self._records:
            self._add(samples, at_s)
            self._device_total.add(total(gpu.memory_used_bytes for gpu in gpus), counts=self._in_stretch)
        values = reduce(_largest, samples)  # of several GPUs the largest
        if any(value is not None for value in values):
            self._thinned.add(at_s, values)
        if self._cpu_energy:
            self._cpu_energy.follow()
        self._last_s, self._sampled_since = at_s, True

    def begin(self, at_s: float, *, shared: bool = False) -> None:
        """Begin a stretch that counts; the process still rests. With `shared` other cells work on the machine."""
        if not self._epochs_s:
            self._epoch_memory.rest(self._host()[0])
        self._in_stretch, self._begun_s, self._sampled_since = True, at_s, False
        if self._cpu_energy:
            self._cpu_energy.begin(shared=shared)
        self._energies_before, self._energy_begun_s = self._energies_j()

    def end(self, at_s: float, *, resting: bool = False) -> None:
        """End the stretch. With `resting` the process exists and is idle, so that expensive values may be read."""
        if not self._in_stretch:
            return
        self._count_energy()
        if self._cpu_energy:
            self._cpu_energy.end()
        if not self._sampled_since:  # a stretch shorter than the time between two samples
            self.sample(at_s)
        self._in_stretch = False
        self._last_s = at_s
        self._epochs_s.append((self._begun_s, at_s))
        self._epoch_memory.end(self._begun_s, at_s)
        if resting:
            self._epoch_memory.rest(self._host()[0])
            self._proportional.append(self._proportional_bytes(at_s))

    def over(self) -> None:
        """Note that the last stretch that counts has ended: later values change no figure, including the peaks."""
        self._records = False

    def usage(self) -> Usage | None:
        """Return the usage; None if nothing was measured."""
        quantities = self._quantities
        if all(quantity.peak is None for quantity in quantities.values()):
            return None
        energy_j = self._energy_j if self._gpus and self._epochs_s else None
        average_w = energy_j / self._energy_time_s if energy_j is not None and self._energy_time_s else None
        power_sources = {gpu.power_source for gpu in self._gpus if gpu.power_source}
        return Usage(
            span_s=self._last_s,
            interval_s=SAMPLE_S,
            host_source="cgroup" if self._group else "processes",
            host_anonymous=quantities["host_anonymous_bytes"].memory(),
            host_resident=quantities["host_resident_bytes"].memory(),
            host_proportional_bytes=self._proportional,
            device_memory=quantities["device_memory_bytes"].memory(),
            device_process_memory=quantities["device_process_memory_bytes"].memory(),
            device_utilisation=quantities[UTILISATION].use(ShareUse, counted_only=bool(self._epochs_s)),
            device_power=quantities["device_power_w"].use(PowerUse),
            device_energy_j=energy_j,
            device_average_power_w=average_w,
            device_power_source=", ".join(sorted(power_sources)) or None,
            devices=len(self._gpus) or None,
            devices_memory=self._device_total.memory() if len(self._gpus) > 1 else None,
            **self._of_cpus(),
        )

    def _of_cpus(self) -> dict[str, Any]:
        """Return the fields of the energy of the CPUs over the stretches."""
        energy = self._cpu_energy
        if energy is None or not self._epochs_s:
            return {}
        return {
            "cpu_energy_j": energy.package_j,
            "dram_energy_j": energy.dram_j,
            "cpu_average_power_w": energy.package_w,
            "cpu_energy_unread": energy.unread,
        }

    def memory_readings(self) -> tuple[tuple[float, int], ...]:
        """Return the anonymous memory at readings in and around the stretches that count, by the stretches done."""
        return self._epoch_memory.readings()

    def series(self) -> UsageSeries | None:
        """Return the usage over time; None without a sample."""
        return self._thinned.series(self._epochs_s)

    def close(self) -> None:
        """Close the files."""
        self._tree.close()
        if self._group:
            self._group.close()

    def _host(self) -> tuple[int | None, int | None]:
        """Return the anonymous and the resident memory of the tree now."""
        host = self._tree.read()
        anonymous, resident = (host.anonymous_bytes, host.resident_bytes) if host else (None, None)
        return (self._group.anonymous_bytes() if self._group else anonymous), resident

    def _add(self, samples: Sequence[tuple[Number | None, ...]], at_s: float) -> None:
        """Add the host's values once, and those of each GPU."""
        for position, name in enumerate(COLUMNS):
            if name != UTILISATION or not self._in_stretch or at_s - self._begun_s >= UTILISATION_PERIOD_S:
                for sample in samples[:1] if position < 2 else samples:
                    self._quantities[name].add(sample[position], counts=self._in_stretch)

    def _energies_j(self) -> tuple[list[float | None], float]:
        """Return the energy counters, and when they were read."""
        return [gpu.energy_j() for gpu in self._gpus], self._clock()

    def _count_energy(self) -> None:
        afters_j, now_s = self._energies_j()
        self._energy_time_s += now_s - self._energy_begun_s
        for before_j, after_j in zip(self._energies_before, afters_j, strict=True):
            if self._energy_j is None or before_j is None or after_j is None or after_j < before_j:
                self._energy_j = None
            else:
                self._energy_j += after_j - before_j

    def _proportional_bytes(self, at_s: float) -> int | None:
        if self._pss_cost_s > PSS_SHARE * at_s:
            return None
        begun_s = time.perf_counter()
        proportional_bytes = self._tree.proportional_bytes()
        self._pss_cost_s += time.perf_counter() - begun_s
        return proportional_bytes


def _largest(first: tuple[Number | None, ...], second: tuple[Number | None, ...]) -> tuple[Number | None, ...]:
    return tuple(b if a is None else a if b is None else max(a, b) for a, b in zip(first, second, strict=True))
