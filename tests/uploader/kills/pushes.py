"""Runs one push as a process, and kills it (SIGKILL) at a boundary (a file operation or a request) or after a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.uploader.kills.killing_proxy import KillingProxy

ROOT = Path(__file__).parents[3]
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process is killed: at a boundary, counted from 0; a number of seconds after it started work; or never."""

    boundary: int | None = None
    after_s: float | None = None


NEVER = Kill()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a push: exit code, number of boundaries (0 if it was killed), duration, messages."""

    code: int
    boundaries: int
    took_s: float
    message: str

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


class Unfinished(Exception):
    """A push did not end, failed with an error other than "push again", or never completed."""


def push_local(arguments: Sequence[str], kill: Kill) -> Outcome:
    """Run `uploader push` into a local warehouse; its boundaries are its file operations."""
    number = -1 if kill.boundary is None else kill.boundary
    process = _started(["tests.uploader.kills.file_operations", str(number), "push", *arguments], {})
    assert process.stdout is not None
    process.stdout.readline()  # printed when the process is ready
    began_s = time.monotonic()
    output, message = _ended(process, kill.after_s)
    counted = output.split()
    boundaries = int(counted[-1]) if counted and counted[-1].isdigit() else 0
    return Outcome(process.returncode, boundaries, time.monotonic() - began_s, message)


def push_to_service(arguments: Sequence[str], kill: Kill, url: str) -> Outcome:
    """Run `uploader push` to a service at `url`; its boundaries are before and after each request."""
    proxy = KillingProxy(url, kill.boundary)
    with proxy as address:
        process = proxy.process = _started(
            ["keras_matrix.uploader", "push", *arguments], {"BIGQUERY_EMULATOR_HOST": address}
        )
        while process.poll() is None and not proxy.began.wait(0.05):
            pass
        began_s = time.monotonic()
        output, message = _ended(process, kill.after_s)
        took_s = time.monotonic() - began_s
    return Outcome(process.returncode, proxy.boundaries, took_s, message + output)


def run(arguments: Sequence[str], url: str) -> None:
    """Run another command of `uploader` on a service."""
    with KillingProxy(url) as address:
        process = _started(["keras_matrix.uploader", *arguments], {"BIGQUERY_EMULATOR_HOST": address})
        output, message = _ended(process, None)
    if process.returncode:
        raise Unfinished(f"uploader {' '.join(arguments)}: exit code {process.returncode}: {message}{output}")


def _started(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_GCE_CHECK": "true", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process: subprocess.Popen[str], after_s: float | None) -> tuple[str, str]:
    """Wait for a process, kill it after its time limit, and return its output and its messages."""
    try:
        return process.communicate(timeout=LIMIT_S if after_s is None else after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        found = process.communicate()
    if after_s is None:
        raise Unfinished(f"a push did not end within {LIMIT_S:.0f} s: {' '.join(map(str, found))}")
    return found
