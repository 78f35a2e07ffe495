"""Executors: where a cell's process runs. One file each; the seam is `Executor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from records.schema import Surroundings
from records.settings import Settings
from runner.cell.job import Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor saw of one process. It judges nothing.

    `infrastructure` says why there was no process, or why its end was not seen; then nothing else is evidence.
    Times in seconds, memory in bytes.
    """

    exit_code: int | None = None
    signal: int | None = None
    deadline_exceeded: bool = False
    oom_kills: int = 0
    infrastructure: str | None = None
    output_tail: str = ""
    wall_time_s: float | None = None
    start_time_s: float | None = None
    parent_cpu_time_s: float | None = None
    peak_tree_memory_bytes: int | None = None
    surroundings: Surroundings = Surroundings()


class Executor(Protocol):
    """Runs one cell's process at a time and reports what it saw."""

    name: str

    def missing(self, backend: str) -> str | None:
        """Return why this backend cannot run here, None when it can."""

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block of repeats of cells with these settings: nothing of the last block is reused."""

    def run(self, job: Job, timeout_s: float) -> Outcome:
        """Run the job until its process has ended or its time is up. Leaves no process behind, also when it raises."""

    def close(self) -> None:
        """Let go of everything."""
