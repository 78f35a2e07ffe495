"""Runs `uploader` as a process, and reads its exit code and output."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800.0
DEADLINE_MIN = "10"  # of one push; a longer one would only delay the report of a hang
COUNTS = re.compile(r"^([\d,]+) new rows, ([\d,]+) already present$", re.MULTILINE)
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command of `uploader`. `code` is negative if a signal ended it."""

    code: int
    output: str

    @property
    def new(self) -> int | None:
        """The number of rows that a push added; None if it printed none."""
        match = COUNTS.search(self.output)
        return int(match[1].replace(",", "")) if match else None

    @property
    def last_line(self) -> str:
        """The last line of the output."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "no output"


@dataclass(frozen=True, slots=True)
class Uploader:
    """Runs `uploader` on one address. `options` are passed to every command, such as --impersonate."""

    address: str
    options: tuple[str, ...] = ()

    def run(self, command: str, *arguments: str) -> Ended:
        """Run a command to its end."""
        with self.started(command, *arguments) as process:
            return ended(process, LIMIT_S)

    def push(self, results: Path, *arguments: str) -> Ended:
        """Push a results folder."""
        return self.run("push", *self._pushing(results), *arguments)

    def push_killed_after(self, results: Path, after_s: float) -> Ended:
        """Push a results folder and kill the process (SIGKILL) after a time if it is still running."""
        with self.started("push", *self._pushing(results)) as process:
            try:
                process.wait(timeout=after_s)
            except subprocess.TimeoutExpired:
                process.kill()
            return ended(process, LIMIT_S)

    def push_at_once(self, folders: Sequence[Path]) -> list[Ended]:
        """Push several results folders concurrently, each by one process."""
        with ExitStack() as stack:
            processes = [stack.enter_context(self.started("push", *self._pushing(folder))) for folder in folders]
            return [ended(process, LIMIT_S) for process in processes]

    @contextmanager
    def started(self, command: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command; it is killed at the end of the block if it is still running."""
        line = [sys.executable, "-m", "keras_matrix.uploader", command, "--to", self.address, *self.options, *arguments]
        with subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _pushing(self, results: Path) -> list[str]:
        return ["--results", str(results), "--deadline", DEADLINE_MIN]


def ended(process: subprocess.Popen[str], limit_s: float) -> Ended:
    """Wait for a command; after the limit it is killed and gets the code 124."""
    try:
        output, _ = process.communicate(timeout=limit_s)
        return Ended(process.returncode, output)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return Ended(TIMED_OUT, f"{output}\nnot finished within {limit_s:g} s")
