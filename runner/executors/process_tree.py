"""Looking at processes through /proc: a tree's memory, the kernel's kills, what a killed runner left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from runner.executors.environment import MARK

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> Iterator[int]:
    """Yield the process and everything below it."""
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    pending.extend(int(child) for child in (task / "children").read_text().split())


def resident_bytes(root: int) -> int:
    """Return the resident memory of a process tree; what has just ended counts nothing."""
    return sum(_resident(pid) for pid in tree(root))


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
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def end_leftovers(mark: str) -> int:
    """Kill every process that carries this mark, left by a runner that was itself killed; return how many."""
    wanted = f"{MARK}={mark}".encode()
    ended = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
    return ended


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0
