"""A process that becomes the parent of its descendants' orphans, in any session, and can end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(*, enabled: bool = True) -> None:
    """Have the kernel kill this process when its parent ends, or no longer do so."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL if enabled else 0)


def children() -> list[int]:
    """Return the children of this process."""
    pids: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            pids += map(int, (task / "children").read_text(encoding="ascii").split())
    return pids


def end_children() -> int:
    """Kill and reap all children, and the orphans that each of them leaves. Return how many were still running."""
    ran = 0
    while True:
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            _, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return ran
        ran += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")
