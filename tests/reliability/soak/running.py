"""A real runner that measures many short cells, and may be stopped between two of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_matrix.records.schema import HARMLESS
from keras_matrix.records.store import Results

ROOT = Path(__file__).parents[3]
ENDED = re.compile(r" *\d+/\d+ ")  # the line of an attempt that has ended
END_LIMIT_S = 600.0


class Ended(Exception):
    """The runner ended before it had measured as many cells as expected."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has: memory of its own in bytes, resident memory in bytes, open files."""

    anonymous_bytes: int
    resident_bytes: int
    open_files: int


class ManyCells:
    """A runner whose matrix has this many cells: one tiny model, with another parameter for each comparison."""

    def __init__(self, folder: Path, comparisons: int, backends: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self.results, self._messages = folder / "results", folder / "messages"
        matrix = folder / "matrix.yaml"
        matrix.write_text(
            "version: 1\n"
            "defaults: {repeats: 1, epochs: 2, steps_per_epoch: 2, samples: 8, batch_size: 4}\n"
            f"backends: [{', '.join(backends)}]\n"
            "cells:\n"
            f"  - {{workload: tests.workloads.misbehaving:well, params: {{n: {list(range(comparisons))}}}}}\n",
            encoding="utf-8",
        )
        with self._messages.open("wb") as messages:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keras_matrix.runner", "--matrix", matrix, "--results", self.results],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
            )

    def measured(self, attempts: int) -> float:
        """Wait until this many more attempts have ended; return the time. Raises `Ended`."""
        assert self.process.stdout is not None
        while attempts:
            line = self.process.stdout.readline()
            if not line:
                raise Ended(f"exit code {self.process.wait()}: {self._messages.read_text(encoding='utf-8')[-2000:]}")
            attempts -= ENDED.match(line) is not None
        return time.monotonic()

    def rest(self) -> None:
        """Stop the process until `go`; the cell that it has just started runs until it waits for its turn."""
        self.process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)

    def finish(self) -> list[str]:
        """Wait for the end; return what is wrong with it or with a record."""
        self.process.communicate(timeout=END_LIMIT_S)
        run = Results(self.results).latest()
        records = run.load()[0] if run else []
        wrong = [f"{r.key}: {r.status}: {r.reason}" for r in records if r.status not in HARMLESS]
        return wrong + ([f"exit code {self.process.returncode}"] if self.process.returncode else [])

    def close(self) -> None:
        """End the process if it still runs."""
        if self.process.poll() is None:
            self.go()
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate(timeout=END_LIMIT_S)
        elif self.process.stdout is not None:
            self.process.stdout.close()

    def use(self) -> dict[str, Use]:
        """Return what the runner and its fork servers have; those of a server that is just ending are left out."""
        found = {"runner": use_of(self.process.pid)}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        for pid in map(int, children.split()):
            with contextlib.suppress(OSError):
                found[f"server {_backend(pid)}"] = use_of(pid)
        return found


def use_of(pid: int) -> Use:
    """Return what a process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
    return Use(sizes["Anonymous"], sizes["Rss"], len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - only their number


def _backend(pid: int) -> str:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((one.partition(b"=")[2].decode() for one in environment if one.startswith(b"KERAS_BACKEND=")), "light")
