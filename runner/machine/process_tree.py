"""Process trees in /proc: their processes, the kernel's OOM kills, and processes that a killed runner left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from keras_matrix.records.host.inherited_environment import MARK
from keras_matrix.runner.machine.surroundings.counters import after

CHILDREN_BYTES = 1 << 16
EMPTY_SCANS = 3


def tree(root: int) -> Iterator[int]:
    """Yield the process and everything below it."""
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a backend has tens of threads: each path costs
                pending.extend(_children(pid, task))


def kill_tree(root: int) -> None:
    """Kill a process and everything below it."""
    signal_tree(root, signal.SIGKILL)


def signal_tree(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and everything below it."""
    for pid in list(tree(root)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since it started."""
    with contextlib.suppress(OSError):
        return after(Path("/proc/vmstat").read_bytes(), b"oom_kill ") or 0
    return 0


def end_leftovers(mark: str) -> int:
    """Kill every process with this mark, left by a runner that was itself killed; return their number.

    A process that forks and ends all the time can escape a scan of /proc, so that several in a row must find nothing.
    """
    ended, empty = 0, 0
    while empty < EMPTY_SCANS:
        found = _end_marked(mark)
        ended += found
        empty = 0 if found else empty + 1
    return ended


def _end_marked(mark: str) -> int:
    wanted = os.fsencode(f"{MARK}={mark}")
    ended = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
    return ended


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
