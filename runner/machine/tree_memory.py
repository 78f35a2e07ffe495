"""The host memory of a process and all below it, cheap enough to be read ten times a second.

Ended processes count as 0. A new process is found at the next reading: the kernel reports the last pid that it
assigned, and the tree is walked again only if that changed, or after a second (LXCFS and sandboxes report invented
pids). A reading of one process took 4 us, a walk 15 us a thread (docs/instruments.md).

Anonymous memory is not backed by a file: heap, stacks, copies of private pages; without page cache, mapped files and
shared memory. A page that a forked child still shares with its server counts for the child, as in a fresh process.
Sources: proc(5) for statm and smaps_rollup; of the kernel, Documentation/admin-guide/cgroup-v2.rst (memory.stat).

Process trees: their processes, and those that a killed runner left; without /proc they are found by psutil.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.host.inherited_environment import MARK
from keras_matrix.records.host.platform import PLATFORM, Facility
from keras_matrix.records.host.procfs import ProcTree
from keras_matrix.records.host.system import ControlGroup, group
from keras_matrix.runner.machine.surroundings.counters import PAGE_BYTES, after, close, opened, total

WALK_S = 1.0
LINE_BYTES = 256
STAT_BYTES = 1 << 14
# The kernel's names for a group's anonymous memory, including that of the groups below it.
ANONYMOUS = {1: b"total_rss ", 2: b"anon "}
CHILDREN_BYTES = 1 << 16
EMPTY_SCANS = 3


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of a process tree, in bytes."""

    anonymous_bytes: int
    resident_bytes: int


class TreeMemory:
    """Reads the memory of a tree. It keeps a file open for each process: close it."""

    def __init__(self, root: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._root, self._clock = root, clock
        self._files: dict[int, int] = {}
        self._load = opened("/proc/loadavg")
        self._last_pid = b""
        self._walked_s = -WALK_S

    @property
    def pids(self) -> Collection[int]:
        """The processes of the last reading."""
        return self._files.keys()

    def read(self) -> HostMemory | None:
        """Return the tree's current memory; None if no process of it exists."""
        self._follow()
        anonymous = resident = 0
        for pid, descriptor in list(self._files.items()):
            words = _content(descriptor, LINE_BYTES).split()
            if len(words) < 3:  # it has ended
                os.close(self._files.pop(pid))
                continue
            resident += int(words[1])
            anonymous += int(words[1]) - int(words[2])  # without pages that are file-backed or shared
        if not resident:
            return None
        return HostMemory(anonymous * PAGE_BYTES, resident * PAGE_BYTES)

    def proportional_bytes(self) -> int | None:
        """Return the tree's proportional set size; None if a process's cannot be read. It walks every page."""
        self._follow()
        return total(map(_proportional, self._files)) or None  # 0: all processes have ended

    def close(self) -> None:
        """Close the files."""
        close(self._load, *self._files.values())
        self._load = None
        self._files = {}

    def _follow(self) -> None:
        """Find new processes, if there may be any."""
        last_pid, now_s = _content(self._load, LINE_BYTES).rpartition(b" ")[2], self._clock()
        if last_pid and last_pid == self._last_pid and now_s - self._walked_s < WALK_S:
            return
        self._last_pid, self._walked_s = last_pid, now_s
        for pid in tree(self._root):
            if pid not in self._files and (descriptor := opened(f"/proc/{pid}/statm")) is not None:
                self._files[pid] = descriptor


class GroupMemory:
    """The anonymous memory of a control group, from its statistics. It keeps a file open: close it."""

    def __init__(self, version: int, folder: str) -> None:
        self._name = ANONYMOUS[version]
        self._stat = opened(f"{folder}/memory.stat")

    def anonymous_bytes(self) -> int | None:
        """Return the group's current memory; None if the group is gone or does not report it."""
        return after(_content(self._stat, STAT_BYTES), self._name)

    def close(self) -> None:
        """Close the file."""
        close(self._stat)
        self._stat = None


def group_of(pid: int) -> GroupMemory | None:
    """Return the memory of a process's group; None if it cannot be read or is this process's own group."""
    if pid <= 0:  # it had ended before its pid was read
        return None
    process_group, own_group = group(ProcTree(), "memory", str(pid)), group(ProcTree(), "memory")
    if not isinstance(process_group, ControlGroup) or process_group == own_group:
        return None
    group_memory = GroupMemory(process_group.version, next(process_group.folders()))
    if group_memory.anonymous_bytes() is None:
        group_memory.close()
        return None
    return group_memory


def _content(descriptor: int | None, limit_bytes: int) -> bytes:
    if descriptor is None:
        return b""
    try:
        return os.pread(descriptor, limit_bytes, 0)
    except OSError:
        return b""


def _proportional(pid: int) -> int | None:
    """Return a process's proportional set size; 0 for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            with contextlib.suppress(ValueError, IndexError):
                return int(line.split()[1]) * 1024
    return None


def tree(root: int) -> Iterator[int]:
    """Yield the process and everything below it."""
    if PLATFORM.lacks(Facility.PROC):
        yield from _listed(root)
        return
    pending_pids = [root]
    while pending_pids:
        pid = pending_pids.pop()
        yield pid
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a backend has tens of threads: each path costs
                pending_pids.extend(_children(pid, task))


def _listed(root: int) -> list[int]:
    """Return what `tree` does where there is no /proc; without those whose parent has ended."""
    import psutil

    try:
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.Error:
        return [root]


def kill_tree(root: int) -> None:
    """Kill a process and everything below it."""
    signal_tree(root, signal.SIGKILL)


def signal_tree(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and everything below it."""
    for pid in list(tree(root)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_leftovers(mark: str) -> int:
    """Kill every process with this mark, left by a runner that was itself killed; return their number.

    A process that forks and ends all the time can escape a scan of /proc, so that several in a row must find nothing.
    """
    ended_count, empty_count = 0, 0
    while empty_count < EMPTY_SCANS:
        just_ended = _end_marked(mark)
        ended_count += just_ended
        empty_count = 0 if just_ended else empty_count + 1
    return ended_count


def _end_marked(mark: str) -> int:
    mark_variable = os.fsencode(f"{MARK}={mark}")
    ended_count = 0
    for pid, variables in _environments():
        if pid != os.getpid() and mark_variable in variables:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended_count += 1
    return ended_count


def _environments() -> Iterator[tuple[int, Collection[bytes]]]:
    """Yield the environment of each process that lets this user read it."""
    if PLATFORM.lacks(Facility.PROC):
        import psutil

        for process in psutil.process_iter(["environ"]):
            yield process.pid, [os.fsencode(f"{name}={text}") for name, text in (process.info["environ"] or {}).items()]
        return
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - of hundreds of processes each path costs
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:  # noqa: PTH123
            yield int(name), file.read().split(b"\0")


def _children(pid: int, task: str) -> list[int]:
    """Return the live processes that one thread started."""
    try:
        descriptor = os.open(f"/proc/{pid}/task/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return [int(child) for child in os.read(descriptor, CHILDREN_BYTES).split()]
    except OSError:
        return []
    finally:
        os.close(descriptor)
