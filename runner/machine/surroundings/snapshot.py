"""The machine's state around a measurement: all readings before it, their changes during it, the other processes, and
the part of both that is the run's own.

Of a process only its name, without control characters, its id and its share of a CPU are reported.

    before = sampler.read(), own_now(tree, pids, usable)
    ...
    after = sampler.read(), own_now(tree, pids, usable)
    watched = Watched(since(before[0], after[0]), own_since(before[1], after[1]))

`pids` are all of the run's processes, including the waiting ones and the runner; if one of them cannot be read, the
figure is None, since its usage would be attributed to others. Memory that processes share counts for each of them, so
that a share of memory is an upper limit.

Source: proc(5) for /proc/PID/stat, statm and io.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.surroundings.disturbance import OwnUse
from keras_matrix.analysis.surroundings.readings import (
    Meanwhile,
    Process,
    ProcessPlacement,
    Readings,
    ResourceLimits,
    Swap,
)
from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.procfs import ProcTree, Unread, covered_stat, integer, stated_bytes
from keras_matrix.records.host.system import MEMORY, container_engine, memory_limit_bytes, memory_used_bytes, quota_cpus
from keras_matrix.records.text import printable
from keras_matrix.runner.machine.gpus.readings import gpus_and_driver
from keras_matrix.runner.machine.surroundings.counters import (
    PAGE_BYTES,
    TICKS_PER_S,
    Sampler,
    moved,
    since,
    total,
)
from keras_matrix.runner.machine.surroundings.processors import clocks, heat, hypervisor, most_cores, numa_nodes, online

LOAD = "/proc/loadavg"
DECIMAL = re.compile(r"[0-9]+[.][0-9]+")
SHOWN = 3
# Processes below this share of one CPU are not listed.
SHOWN_SHARE = 0.005


def look(tree: ProcTree, cpus: Collection[int], measure: Callable[[], Sequence[float]]) -> Readings:
    """Read the machine, before and while `measure` runs, which returns a log ratio for each of its pairs."""
    load, heat_before = _load(tree), heat(tree, cpus)
    meanwhile, ratios = watch(tree, cpus, measure)
    gpus, driver = gpus_and_driver(tree)
    return Readings(
        clocks=clocks(tree, cpus),
        heat=heat_before,
        limits=_limits(tree, cpus),
        place=ProcessPlacement(
            hypervisor=hypervisor(tree),
            container=container_engine(tree),
            numa_nodes=numa_nodes(tree, cpus),
            aslr=tree.number("/proc/sys/kernel/randomize_va_space"),
            missing_rights=missing_rights(tree),
            cores_of_a_node=most_cores(tree, cpus),
        ),
        swap=swap(tree),
        load=load,
        meanwhile=meanwhile,
        gpus=gpus,
        driver=driver,
        pair_log_ratios=tuple(ratios),
    )


def watch(
    tree: ProcTree, cpus: Collection[int], measure: Callable[[], Sequence[float]]
) -> tuple[Meanwhile, Sequence[float]]:
    """Return the machine's activity while `measure` ran, and its result."""
    with Sampler(cpus, tree.root) as sampler:
        processes_before, own_s, counters_before = processes(tree), ended_cpu_s(), sampler.read()
        ratios = measure()
        stretch, own_use = since(counters_before, sampler.read()), OwnUse(cpu_s=ended_cpu_s() - own_s)
    return Meanwhile(stretch, own_use, others(processes_before, processes(tree), {os.getpid()}, stretch.wall_s)), ratios


def _limits(tree: ProcTree, cpus: Collection[int]) -> ResourceLimits:
    online_cpus = online(tree)
    online_count = online_cpus if isinstance(online_cpus, Unread) else len(online_cpus)
    return ResourceLimits(len(cpus), online_count, quota_cpus(tree), memory_limit_bytes(tree), memory_used_bytes(tree))


def swap(tree: ProcTree) -> Swap | Unread:
    """Return the swap space of the machine (proc(5), meminfo)."""
    total_bytes, free_bytes = stated_bytes(tree, MEMORY, "SwapTotal"), stated_bytes(tree, MEMORY, "SwapFree")
    if isinstance(total_bytes, Unread):
        return total_bytes
    return free_bytes if isinstance(free_bytes, Unread) else Swap(max(0, total_bytes - free_bytes), total_bytes)


def _load(tree: ProcTree) -> float | Unread:
    text = tree.text(LOAD)
    if isinstance(text, Unread):
        return text
    word = (text.split() or [""])[0]
    return float(word) if DECIMAL.fullmatch(word) else Unread(f"{LOAD} holds {text[:20]!r}, not numbers")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields used of a process's stat file; times in seconds."""

    name: str
    parent: int
    cpu_s: float
    ended_children_cpu_s: float
    started_ticks: int

    @property
    def whole_cpu_s(self) -> float:
        """The CPU time of the process and its ended children."""
        return self.cpu_s + self.ended_children_cpu_s


def processes(tree: ProcTree) -> dict[int, ProcessStat] | Unread:
    """Return every visible process."""
    stat_by_pid = {}
    for name in tree.names("/proc", "[0-9]*"):
        pid = integer(name)
        line = None if pid is None else read_line(tree, pid)
        if pid is not None and line is not None:
            stat_by_pid[pid] = line
    return stat_by_pid or Unread("/proc shows no process")


def read_line(tree: ProcTree, pid: int) -> ProcessStat | None:
    """Return a process's stat file: `PID (NAME) STATE PPID ...`, whose name may contain blanks and parentheses."""
    text = tree.text(f"/proc/{pid}/stat")
    if isinstance(text, Unread):
        return None
    head, separator, remainder = text.rpartition(")")
    words = remainder.split()
    numbers = [integer(word) for word in words[1:20]]
    if not separator or len(numbers) < 19:
        return None
    parent, user, system, child_user, child_system, started_ticks = (numbers[i] for i in (0, 10, 11, 12, 13, 18))
    if parent is None or user is None or system is None or child_user is None or child_system is None:
        return None
    name = " ".join(printable(head.partition("(")[2]).split()) or "?"
    used_cpu_s, children_cpu_s = (user + system) / TICKS_PER_S, (child_user + child_system) / TICKS_PER_S
    return ProcessStat(name[:20], parent, used_cpu_s, children_cpu_s, started_ticks or 0)


def others(
    before: Mapping[int, ProcessStat] | Unread,
    after: Mapping[int, ProcessStat] | Unread,
    own_pids: Collection[int],
    wall_s: float,
) -> tuple[Process, ...] | Unread:
    """Return the processes outside the trees of `own_pids` that used most CPU meanwhile, most first.

    A process's ended children count for it: a compiler that lives for a tenth of a second is in neither reading, but
    its CPU time is in that of the `make` that waits for it.
    """
    if isinstance(before, Unread):
        return before
    if isinstance(after, Unread):
        return after
    known_cpu_s = _counted_before(before, after)
    busy_processes = [
        Process(line.name, max(0.0, line.whole_cpu_s - known_cpu_s.get(pid, 0.0)) / wall_s, pid)
        for pid, line in after.items()
        if not _descends(pid, own_pids, after)
    ]
    busy_processes.sort(key=lambda process: (-process.cpu_share, process.name))
    return tuple(process for process in busy_processes[:SHOWN] if process.cpu_share >= SHOWN_SHARE)


def _counted_before(before: Mapping[int, ProcessStat], after: Mapping[int, ProcessStat]) -> dict[int, float]:
    """Return, by process of `after`, how much of its CPU time and that of its ended children was used before.

    The CPU time of a process that has ended since belongs to its nearest live ancestor.
    """
    counted_s: dict[int, float] = {}
    for pid, line in before.items():
        heir, visited = pid, {0}
        while heir in before and heir not in visited and not _same(before[heir], after.get(heir)):
            visited.add(heir)
            heir = before[heir].parent
        if heir in before and heir not in visited:
            counted_s[heir] = counted_s.get(heir, 0.0) + line.whole_cpu_s
    return counted_s


def _same(earlier: ProcessStat, later: ProcessStat | None) -> bool:
    """Return whether this is still the same process; its pid may have been reused."""
    return later is not None and earlier.started_ticks == later.started_ticks


def missing_rights(tree: ProcTree) -> tuple[str, ...]:
    """Return the rights needed for reading and measuring that are missing here, without changing anything."""
    missing_texts = []
    if isinstance(tree.text("/proc/1/stat"), Unread):
        missing_texts.append("processes of other users are not visible")
    if covered_stat(tree):
        missing_texts.append("/proc/stat is a container's own, so the CPU use of others is not visible")
    try:
        can_bind = PLATFORM.bind(PLATFORM.usable_cpus())
    except OSError:
        can_bind = False
    if not can_bind:
        missing_texts.append("processes cannot be bound to CPUs")
    return tuple(missing_texts)


def _descends(pid: int, own_pids: Collection[int], lines: Mapping[int, ProcessStat]) -> bool:
    visited: set[int] = set()
    while pid in lines and pid not in visited:
        if pid in own_pids:
            return True
        visited.add(pid)
        pid = lines[pid].parent
    return pid in own_pids


def own_now(tree: ProcTree, pids: Collection[int], usable_bytes: int | None) -> OwnUse:
    """Return what these processes and their ended children have used since they started, and the memory they hold.

    `usable_bytes` is what they may use (`records.host.system.usable_memory_bytes`); None if it is unknown.
    """
    resident = total(_resident_bytes(tree, pid) for pid in pids)
    return OwnUse(
        cpu_s=cpu_now(tree, pids),
        memory_share=resident / usable_bytes if resident is not None and usable_bytes else None,
        storage_bytes=total(_storage_bytes(tree, pid) for pid in pids),
    )


def own_since(before: OwnUse, after: OwnUse) -> OwnUse:
    """Return what was used between two readings of the same processes; for memory the larger share."""
    known_shares = [share for share in (before.memory_share, after.memory_share) if share is not None]
    return OwnUse(
        cpu_s=moved(before.cpu_s, after.cpu_s),
        memory_share=max(known_shares) if len(known_shares) == 2 else None,
        storage_bytes=moved(before.storage_bytes, after.storage_bytes),
    )


def cpu_now(tree: ProcTree, pids: Collection[int]) -> float | None:
    """Return the CPU time of these processes and their ended children since they started."""
    return total(line.whole_cpu_s if (line := read_line(tree, pid)) else None for pid in pids)


def ended_cpu_s() -> float:
    """Return the CPU time of this process and its ended children: all of a run without live child processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _resident_bytes(tree: ProcTree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/statm")
    pages = None if isinstance(text, Unread) else integer([*text.split(), "", ""][1])
    return None if pages is None else pages * PAGE_BYTES


def _storage_bytes(tree: ProcTree, pid: int) -> int | None:
    text = tree.text(f"/proc/{pid}/io")
    values = {} if isinstance(text, Unread) else dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    read_bytes, written_bytes = (integer(values.get(name, "")) for name in ("read_bytes", "write_bytes"))
    return None if read_bytes is None or written_bytes is None else read_bytes + written_bytes
