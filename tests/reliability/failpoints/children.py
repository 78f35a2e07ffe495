"""Runs a function in a forked process with its own folder and output: the modules are already imported."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 60.0
RAISED = 99


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code, -N after signal N, and what it printed; None after the time limit."""

    code: int | None
    output: str
    errors: str

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, at a failpoint."""
        return self.code == -signal.SIGKILL


def forked(function: Callable[[], int], folder: Path, output: Path, limit_s: float = LIMIT_S) -> Ended:
    """Run a function in a forked process, in a folder. The files `output` and `output`.errors get what it prints."""
    paths = output, output.with_suffix(".errors")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(function, folder, paths)
    code = _wait(pid, limit_s)
    return Ended(code, *(path.read_text(errors="replace") for path in paths))


def _run(function: Callable[[], int], folder: Path, paths: tuple[Path, Path]) -> None:
    """Run the function and end the process, without the cleanup of the one that it is a copy of."""
    leave, code = os._exit, RAISED
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(paths, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        (folder / "tmp").mkdir(exist_ok=True)
        tempfile.tempdir = str(folder / "tmp")
        code = function()
    except BaseException:  # noqa: BLE001 - a forked process must end here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)


def _wait(pid: int, limit_s: float) -> int | None:
    """Return the exit code of a process; None if it had to be ended after its time limit."""
    descriptor, until_s = os.pidfd_open(pid), time.monotonic() + limit_s
    try:
        ended = select.select([descriptor], [], [], max(0.0, until_s - time.monotonic()))[0]
    finally:
        os.close(descriptor)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
