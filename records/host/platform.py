"""The operating system: the only place that asks which one it is and what it offers beyond POSIX, to decide by it.

`PLATFORM` is this machine. A test makes another `Platform` from a name, a folder that replaces `/`, and facilities.
What a system lacks is never a zero: a reading is None, and `unread` says why. docs/commands.md#platforms has the table.

Supervision without `prctl`: a thread watches the parent, and what a cell has left is found by its session only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from keras_matrix.records.host.procfs import ProcTree, Unread, covered_stat

PR_SET_PDEATHSIG = 1  # of prctl(2)
PR_SET_CHILD_SUBREAPER = 36
PARENT_CHECK_S = 0.2

StartMethod = Literal["fork", "spawn"]


class Facility(StrEnum):
    """What not every system has."""

    PROC = "/proc"
    AFFINITY = "sched_setaffinity"
    FORK = "fork after the import of a backend"
    PRCTL = "prctl"
    PIDFD = "pidfd_open"
    PAGE_CACHE = "posix_fadvise"
    NAMESPACES = "setns and unshare"


# What each is used for, and what happens without it.
FACILITIES = {
    Facility.PROC: (
        "memory and CPU time of a cell's processes, other programs, pressure, OOM kills",
        "null, with the warning `unread`; `psutil` finds the processes to end",
    ),
    Facility.AFFINITY: (
        "`cpus`, and one CPU for each process of a proof",
        "`cpus` is refused; `threads` limits threads only",
    ),
    Facility.FORK: (
        "cells are forked from a server that has imported the backend",
        "each cell is a fresh interpreter, as with `--start fresh`",
    ),
    Facility.PRCTL: (
        "no process outlives its cell, also one in a session of its own",
        "processes of the cell's session are ended; `task.outlived` is null",
    ),
    Facility.PIDFD: (
        "the end of a process and that of the runner are awaited together",
        "a thread waits for the process",
    ),
    Facility.PAGE_CACHE: (
        "`page_cache: cold`, and the speed of storage",
        "no file is evicted: `cold_meaning` says so, and the speed of storage is not measured",
    ),
    Facility.NAMESPACES: ("networks of `ci/netns`", "refused"),
}
# What is null in a record if the kernel has no such file, or the file no such line.
READINGS = {
    "/proc/vmstat": "evidence.oom_kills",
    "/proc/self/statm": "usage.host_anonymous, usage.host_resident",
    "/proc/stat": "surroundings.steal_share, surroundings.other_cpu_share",
    "/proc/meminfo": "machine.memory_bytes",
    "/proc/self/task/*/children": "task.outlived",
}
LINES = {
    "/proc/vmstat": ("oom_kill", r"^oom_kill +\d+$"),
    "/proc/stat": ("times of each CPU, stolen time included", r"^cpu\d+( +\d+){8}"),
    "/proc/meminfo": ("MemTotal", r"^MemTotal: +\d+ kB"),
}
# What the engine of a container reports.
OF_CONTAINERS = {"evidence.oom_kills", "task.outlived"}
SYSTEM_NAMES = {"Darwin": "macOS"}


@dataclass(frozen=True, slots=True)
class Platform:
    """A system, its processor, its files below a root, what it has, and its monotonic clock."""

    system: str
    machine: str
    tree: ProcTree = ProcTree()
    facilities: frozenset[Facility] = frozenset(Facility)
    clock: Callable[[], float] = time.perf_counter

    def __str__(self) -> str:
        return f"{SYSTEM_NAMES.get(self.system, self.system)} on {self.machine}"

    def lacks(self, facility: Facility) -> str | None:
        """Return that the system has no such facility; None if it has."""
        if facility in self.facilities:
            return None
        return f"{SYSTEM_NAMES.get(self.system, self.system)} has no {facility}"

    def unread(self, *, contained: bool = False) -> str | None:
        """Return which figures of a record are null on this system, and why; None if there are none.

        Of a process in a container, its engine or its server there reports `OF_CONTAINERS`.
        """
        figures = {path: text for path, text in READINGS.items() if not (contained and text in OF_CONTAINERS)}
        if why := self.lacks(Facility.PROC):
            return f"{', '.join(figures.values())}: {why}"
        return "; ".join(f"{text}: {why}" for path, text in figures.items() if (why := self._why(path))) or None

    def _why(self, path: str) -> str | None:
        """Return why the figures of a file are null, None if it has them."""
        if READINGS[path] == "task.outlived":
            return self.lacks(Facility.PRCTL) or (f"{path} does not exist" if self.children() is None else None)
        text = self.tree.text(path)
        if isinstance(text, Unread):
            return text.why
        if path == "/proc/stat" and covered_stat(self.tree):
            return f"{path} is covered by a mount that shows one container alone"
        word, line = LINES.get(path, ("", ""))
        return None if re.search(line, text, re.MULTILINE) else f"{path} has no {word}"

    def start_method(self, device: str) -> StartMethod:
        """Return how processes that use a device are started: CUDA cannot be used in a forked one."""
        return "fork" if device == "cpu" and Facility.FORK in self.facilities else "spawn"

    def usable_cpus(self) -> set[int]:
        """Return the CPUs that this process may use."""
        if Facility.AFFINITY in self.facilities:
            return os.sched_getaffinity(0)
        return set(range(os.cpu_count() or 1))

    def bind(self, cpus: Iterable[int]) -> bool:
        """Bind this process to these CPUs; return whether the system can. Raises OSError."""
        if Facility.AFFINITY not in self.facilities:
            return False
        os.sched_setaffinity(0, cpus)
        return True

    def peak_resident_bytes(self) -> int:
        """Return the peak of this process: `ru_maxrss` is in KiB, on macOS in bytes (getrusage(2) of either)."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if self.system == "Darwin" else peak * 1024

    def load_average(self) -> float | None:
        """Return the load average of one minute; None if the system does not say."""
        with contextlib.suppress(OSError):
            return os.getloadavg()[0]
        return None

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel has killed for memory since it started; None if it does not say."""
        vmstat = self.tree.text("/proc/vmstat") if Facility.PROC in self.facilities else Unread("no /proc")
        lines = [] if isinstance(vmstat, Unread) else vmstat.splitlines()
        counts = [line.partition(" ")[2].strip() for line in lines if line.startswith("oom_kill ")]
        return int(counts[0]) if counts and counts[0].isdigit() else None

    def advise(self, descriptor: int, advice: str) -> bool:
        """Give the kernel advice about an open file, such as `RANDOM`; return whether it takes any. Raises OSError."""
        if Facility.PAGE_CACHE not in self.facilities:
            return False
        os.posix_fadvise(descriptor, 0, 0, getattr(os, f"POSIX_FADV_{advice}"))
        return True

    @property
    def loopback(self) -> str:
        """The name of the network interface of the machine itself."""
        return "lo0" if self.system == "Darwin" else "lo"

    # Supervision.

    def adopt_orphans(self) -> None:
        """Become the parent of every descendant whose own parent ends, if the system can."""
        if Facility.PRCTL in self.facilities:
            _prctl(PR_SET_CHILD_SUBREAPER, 1)

    def follow_parent(self, *, enabled: bool = True) -> None:
        """Have the kernel kill this process when its parent ends, or no longer do so; nothing where it cannot."""
        if Facility.PRCTL in self.facilities:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL if enabled else 0)

    def end_with_parent(self, parent: int, number: int = signal.SIGKILL) -> None:
        """Have this process receive a signal when its parent, with this pid, ends; at once if it has ended."""
        if Facility.PRCTL in self.facilities:
            _prctl(PR_SET_PDEATHSIG, number)
        else:
            threading.Thread(target=_end_after, args=(parent, number), daemon=True).start()
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    def children(self) -> list[int] | None:
        """Return the children of this process; None if the system does not say, as a kernel without this file."""
        if Facility.PROC not in self.facilities:
            return None
        tasks = self.tree.names("/proc/self/task", "[0-9]*")
        texts = [self.tree.text(f"/proc/self/task/{task}/children") for task in tasks]
        children = [text.split() for text in texts if not isinstance(text, Unread)]  # a task may have ended since
        return [int(pid) for pids in children for pid in pids] if children else None

    def end_children(self, session: int | None = None) -> int | None:
        """Kill and reap all children, and the orphans that each of them leaves. Return how many were still running.

        Where the system does not say which there are, end the processes of a cell's session, and return None.
        """
        if self.children() is None or Facility.PRCTL not in self.facilities:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if session is not None:
                    os.killpg(session, signal.SIGKILL)
            return None
        ran = 0
        while True:
            for child in self.children() or ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            try:
                _, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return ran
            ran += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def await_end(self, pid: int, connection: socket.socket) -> tuple[int, float] | None:
        """Wait for a child: return its wait status and CPU time; None if the connection can be read first.

        Without pidfd_open a thread waits, and tells through a pipe.
        """
        ended: list[tuple[int, float]] = []
        if Facility.PIDFD in self.facilities:
            watch, waiter = os.pidfd_open(pid), None
        else:
            watch, writer = os.pipe()
            waiter = threading.Thread(target=_reap, args=(pid, writer, ended))
            waiter.start()
        waiting: list[Any] = [connection, watch]
        readable, _, _ = select.select(waiting, [], [])
        if connection in readable:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if waiter is None:
            ended.append(_waited(pid))
        else:
            waiter.join()
        os.close(watch)
        return None if connection in readable else ended[0]


def detected() -> Platform:
    """Return the platform of this machine."""
    linux = sys.platform == "linux"
    present = {
        Facility.PROC: linux and Path("/proc/self").exists(),
        Facility.AFFINITY: hasattr(os, "sched_setaffinity"),
        Facility.FORK: linux,
        Facility.PRCTL: linux,
        Facility.PIDFD: linux and _has_pidfd(),
        Facility.PAGE_CACHE: hasattr(os, "posix_fadvise"),
        Facility.NAMESPACES: linux,
    }
    facilities = frozenset(facility for facility, is_present in present.items() if is_present)
    return Platform(platform.system(), platform.machine(), facilities=facilities)


def _has_pidfd() -> bool:
    """Return whether both this Python and this kernel have the call: either can be older."""
    with contextlib.suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        return True
    return False


PLATFORM = detected()


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")


def _end_after(parent: int, number: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), number)


def _waited(pid: int) -> tuple[int, float]:
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_utime + usage.ru_stime


def _reap(pid: int, writer: int, ended: list[tuple[int, float]]) -> None:
    try:
        ended.append(_waited(pid))
    finally:
        os.close(writer)
