"""The machine's cumulative counters, cheap enough to read at both ends of every epoch, and their difference.

    with Sampler(PLATFORM.usable_cpus()) as sampler:
        before = sampler.read()
        ...
        stretch = since(before, sampler.read())

Files are opened once and read again by position; a reading takes well under 0.3 ms on a machine of a few CPUs
(docs/lab/noise.md has the measurement). A counter that the kernel does not report or that ran backwards is None.

CPU times are sums over the given CPUs: activity on CPUs that the run may not use does not delay it. Interrupts are
separate from programs, since they cannot be attributed to a process.

Sources: proc(5) for /proc/stat and /proc/vmstat; of the kernel, Documentation/accounting/psi.rst for pressure,
drivers/thermal/intel/therm_throt.c for throttling, Documentation/admin-guide/cgroup-v2.rst for quotas.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from keras_matrix.analysis.surroundings.disturbance import CounterChanges
from keras_matrix.records.host.procfs import ProcTree, Unread, covered_stat
from keras_matrix.records.host.system import HERE, quota_folder

N = TypeVar("N", int, float)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MICRO_S, NANO_S = 1e-6, 1e-9
CHUNK_BYTES = 1 << 16
# At some 2 us a file this keeps a reading within 0.3 ms; more CPUs than that seldom throttle separately.
THROTTLE_FILES = 64
# Rounding is at most a tick in each field of each CPU at either end; a quarter of the time is more than that.
TICKS_TOLERANCE = 0.25
TICKS_TOLERANCE_S = 0.05
PRESSURES = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class Counters:
    """A reading of every counter, with a monotonic clock as `wall_s`. Only differences are meaningful."""

    totals: CounterChanges
    cpus: int
    cpu_idle_s: float | None


class Sampler(contextlib.AbstractContextManager["Sampler"]):
    """Reads `Counters`. It keeps files open: close it, or use it as a context manager."""

    def __init__(
        self, cpus: Collection[int], root: Path = Path("/"), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Open the files that exist. `cpus` are those the run may use."""
        tree = ProcTree(root)
        self._clock = clock
        self._labels = frozenset(b"cpu%d" % cpu for cpu in cpus)
        self._stat = None if covered_stat(tree) else opened("/proc/stat", tree)
        self._vmstat = opened("/proc/vmstat", tree)
        self._pressures = {name: opened(f"/proc/pressure/{name}", tree) for name in PRESSURES}
        self._throttles = [fd for path in _throttle_paths(tree, cpus) if (fd := opened(path, tree)) is not None]
        folder = quota_folder(tree)
        self._quota = None if folder is None else opened(f"{folder}/cpu.stat", tree)

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        self.close()

    def close(self) -> None:
        """Close the files; later readings are empty."""
        close(self._stat, self._vmstat, self._quota, *self._pressures.values(), *self._throttles)
        self._stat = self._vmstat = self._quota = None
        self._pressures = dict.fromkeys(PRESSURES)
        self._throttles = []

    def read(self) -> Counters:
        """Return the counters now."""
        stat, vmstat = _content(self._stat), _content(self._vmstat)
        total_s, busy_s, idle_s, irq_s, steal_s = _cpu_times(stat, self._labels)
        cpu, memory, io = (_content(self._pressures[name]) for name in PRESSURES)
        totals = CounterChanges(
            wall_s=self._clock(),
            cpu_total_s=total_s,
            cpu_busy_s=busy_s,
            cpu_irq_s=irq_s,
            cpu_steal_s=steal_s,
            cpu_some_s=_pressure_s(cpu, b"some "),
            memory_some_s=_pressure_s(memory, b"some "),
            memory_full_s=_pressure_s(memory, b"full "),
            io_some_s=_pressure_s(io, b"some "),
            io_full_s=_pressure_s(io, b"full "),
            quota_throttled_s=_quota_throttled_s(_content(self._quota)),
            throttle_events=total(_number(_content(descriptor)) for descriptor in self._throttles),
            swapped_in_bytes=_times(after(vmstat, b"pswpin "), PAGE_BYTES),
            swapped_out_bytes=_times(after(vmstat, b"pswpout "), PAGE_BYTES),
            context_switches=after(stat, b"ctxt "),
        )
        return Counters(totals, len(self._labels), idle_s)


def since(before: Counters, after: Counters) -> CounterChanges:
    """Return the counters' differences. A counter that is missing at one end or ran backwards is None."""
    change_by_name: dict[str, Any] = {
        f.name: moved(getattr(before.totals, f.name), getattr(after.totals, f.name)) for f in fields(CounterChanges)
    }
    wall_s = after.totals.wall_s - before.totals.wall_s
    stretch = CounterChanges(**(change_by_name | {"wall_s": wall_s}))
    return _timed(stretch, wall_s * after.cpus, moved(before.cpu_idle_s, after.cpu_idle_s), after.cpus)


def _timed(counter_changes: CounterChanges, total_s: float, idle_s: float | None, cpu_count: int) -> CounterChanges:
    """Compute busy time from the clock and the idle time, which the kernel measures, whereas it samples busy ticks.

    For a program that uses half of a CPU in short pieces, sampling at 250 Hz blurs a second by 3 %. If the ticks do not
    add up to the clock's time, the counters are not this machine's (sandboxes report zeros) or it was suspended.
    """
    ticks_s, irq_s, steal_s = counter_changes.cpu_total_s, counter_changes.cpu_irq_s, counter_changes.cpu_steal_s
    unknown_changes = replace(counter_changes, cpu_total_s=None, cpu_busy_s=None, cpu_irq_s=None, cpu_steal_s=None)
    if ticks_s is None or idle_s is None or irq_s is None or steal_s is None:
        return unknown_changes
    if abs(ticks_s - total_s) > TICKS_TOLERANCE * total_s + TICKS_TOLERANCE_S * cpu_count:
        return unknown_changes
    return replace(counter_changes, cpu_total_s=total_s, cpu_busy_s=max(0.0, total_s - idle_s - irq_s - steal_s))


def moved(before: N | None, after: N | None) -> N | None:
    """Return a counter's difference; None if it is missing at one end or ran backwards."""
    return None if before is None or after is None or after < before else after - before


def total(values: Iterable[N | None]) -> N | None:
    """Return the sum; None if a value is missing, or without values."""
    all_values = list(values)
    known_values = [value for value in all_values if value is not None]
    return sum(known_values[1:], known_values[0]) if known_values and len(known_values) == len(all_values) else None


def _throttle_paths(tree: ProcTree, cpus: Collection[int]) -> list[str]:
    """Return the files that count throttling: one a CPU, and one a package."""
    cores: list[str] = []
    packages: dict[str | Unread, str] = {}
    for cpu in sorted(cpus):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        cores.append(f"{folder}/thermal_throttle/core_throttle_count")
        package = tree.text(f"{folder}/topology/physical_package_id")
        packages.setdefault(package, f"{folder}/thermal_throttle/package_throttle_count")
    return [*packages.values(), *cores][:THROTTLE_FILES]


def opened(path: str, tree: ProcTree = HERE) -> int | None:
    """Return a descriptor of a file that is read repeatedly; None if it cannot be opened."""
    try:
        return os.open(tree.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


def close(*descriptors: int | None) -> None:
    """Close those that were opened."""
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)


def _content(descriptor: int | None) -> bytes:
    if descriptor is None:
        return b""
    chunks: list[bytes] = []
    with contextlib.suppress(OSError):  # disabled pressure files can be opened, but not read
        offset = 0
        while chunk := os.pread(descriptor, CHUNK_BYTES, offset):
            chunks.append(chunk)
            offset += len(chunk)
    return b"".join(chunks)


def _cpu_times(stat: bytes, labels: frozenset[bytes]) -> Sequence[float | None]:
    """Return the sums over the named CPUs, in seconds: total, busy, idle, interrupts, stolen.

    All are None unless each CPU is reported.
    """
    sums, counted_cpus = [0] * 8, 0
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):
            break
        label, *words = line.split()
        if label not in labels:
            continue
        ticks = [_number(word) for word in words[:8]]
        if len(ticks) < 8:
            break
        sums = [so_far + (tick or 0) for so_far, tick in zip(sums, ticks, strict=True)]
        counted_cpus += None not in ticks
    if not labels or counted_cpus != len(labels):
        return (None,) * 5
    user, nice, system, idle, waiting, irq, softirq, steal = (ticks / TICKS_PER_S for ticks in sums)
    return sum(sums) / TICKS_PER_S, user + nice + system, idle + waiting, irq + softirq, steal


def _pressure_s(content: bytes, kind: bytes) -> float | None:
    """Return the total of a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12`."""
    for line in content.splitlines():
        if line.startswith(kind):
            return _times(_number(line.rpartition(b"total=")[2]), MICRO_S)
    return None


def _quota_throttled_s(content: bytes) -> float | None:
    """Return how long the quota stopped this process's group: microseconds in version 2, nanoseconds in version 1."""
    microseconds = after(content, b"throttled_usec ")
    return _times(after(content, b"throttled_time "), NANO_S) if microseconds is None else microseconds * MICRO_S


def after(content: bytes, name: bytes) -> int | None:
    """Return the number that follows a name at the beginning of a line; None without one."""
    start = 0 if content.startswith(name) else content.find(b"\n" + name) + 1
    if start == 0 and not content.startswith(name):
        return None
    return _number(content[start + len(name) :].split(b"\n", 1)[0])


def _number(word: bytes) -> int | None:
    word = word.strip()
    return int(word) if word.isdigit() and len(word) <= 20 else None


def _times(count: int | None, unit: N) -> N | None:
    return None if count is None else count * unit
