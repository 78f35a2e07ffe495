"""Ends a child process with the process that started it, even if that is killed."""

from __future__ import annotations

import ctypes
import os
import signal

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with(parent: int | None, number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent, with this process id, ends; None: do nothing."""
    if parent is None:
        return
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, number)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)
