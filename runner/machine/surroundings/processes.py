"""Processes, and the rights of this one.

Of a process only its name, without control characters, its id and its share of a CPU are reported.
Source: proc(5) for /proc/PID/stat.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from keras_matrix.analysis.surroundings.readings import Process
from keras_matrix.records.host.procfs import ProcTree, Unread, integer
from keras_matrix.records.text import printable
from keras_matrix.runner.machine.surroundings.counters import TICKS_PER_S, covered_stat

SHOWN = 3
# Processes below this share of one CPU are not listed.
SHOWN_SHARE = 0.005


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
    found = {}
    for name in tree.names("/proc", "[0-9]*"):
        pid = integer(name)
        line = None if pid is None else read_line(tree, pid)
        if pid is not None and line is not None:
            found[pid] = line
    return found or Unread("/proc shows no process")


def read_line(tree: ProcTree, pid: int) -> ProcessStat | None:
    """Return a process's stat file: `PID (NAME) STATE PPID ...`, whose name may contain blanks and parentheses."""
    text = tree.text(f"/proc/{pid}/stat")
    if isinstance(text, Unread):
        return None
    head, found, rest = text.rpartition(")")
    words = rest.split()
    numbers = [integer(word) for word in words[1:20]]
    if not found or len(numbers) < 19:
        return None
    parent, user, system, child_user, child_system, started = (numbers[i] for i in (0, 10, 11, 12, 13, 18))
    if parent is None or user is None or system is None or child_user is None or child_system is None:
        return None
    name = " ".join(printable(head.partition("(")[2]).split()) or "?"
    used, ended = (user + system) / TICKS_PER_S, (child_user + child_system) / TICKS_PER_S
    return ProcessStat(name[:20], parent, used, ended, started or 0)


def others(
    before: Mapping[int, ProcessStat] | Unread,
    after: Mapping[int, ProcessStat] | Unread,
    own: Collection[int],
    wall_s: float,
) -> tuple[Process, ...] | Unread:
    """Return the processes outside the trees of `own` that used most CPU meanwhile, most first.

    A process's ended children count for it: a compiler that lives for a tenth of a second is in neither reading, but
    its CPU time is in that of the `make` that waits for it.
    """
    if isinstance(before, Unread):
        return before
    if isinstance(after, Unread):
        return after
    known = _counted_before(before, after)
    used = [
        Process(line.name, max(0.0, line.whole_cpu_s - known.get(pid, 0.0)) / wall_s, pid)
        for pid, line in after.items()
        if not _descends(pid, own, after)
    ]
    used.sort(key=lambda process: (-process.cpu_share, process.name))
    return tuple(process for process in used[:SHOWN] if process.cpu_share >= SHOWN_SHARE)


def _counted_before(before: Mapping[int, ProcessStat], after: Mapping[int, ProcessStat]) -> dict[int, float]:
    """Return, by process of `after`, how much of its CPU time and that of its ended children was used before.

    The CPU time of a process that has ended since belongs to its nearest live ancestor.
    """
    found: dict[int, float] = {}
    for pid, line in before.items():
        heir, visited = pid, {0}
        while heir in before and heir not in visited and not _same(before[heir], after.get(heir)):
            visited.add(heir)
            heir = before[heir].parent
        if heir in before and heir not in visited:
            found[heir] = found.get(heir, 0.0) + line.whole_cpu_s
    return found


def _same(earlier: ProcessStat, later: ProcessStat | None) -> bool:
    """Return whether this is still the same process; its pid may have been reused."""
    return later is not None and earlier.started_ticks == later.started_ticks


def missing_rights(tree: ProcTree) -> tuple[str, ...]:
    """Return the rights needed for reading and measuring that are missing here, without changing anything."""
    found = []
    if isinstance(tree.text("/proc/1/stat"), Unread):
        found.append("processes of other users are not visible")
    if covered_stat(tree):
        found.append("/proc/stat is a container's own, so the CPU use of others is not visible")
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError:
        found.append("processes cannot be bound to CPUs")
    return tuple(found)


def _descends(pid: int, own: Collection[int], lines: Mapping[int, ProcessStat]) -> bool:
    visited: set[int] = set()
    while pid in lines and pid not in visited:
        if pid in own:
            return True
        visited.add(pid)
        pid = lines[pid].parent
    return pid in own
