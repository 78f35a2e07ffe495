"""Executors: where a cell's process runs. The seam is `Executor`; a row of `registry` names each, with its contract.

To add one, read `contract`: what an executor owes the runner if its cells are on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from keras_matrix.analysis.surroundings.disturbance import Watched
from keras_matrix.records.instruments.usage import Usage, UsageSeries
from keras_matrix.records.schema import Container, Machine, Surroundings
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.tasks.observation import TaskObservation


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor saw of one process. It judges nothing.

    `infrastructure` says why there was no process, or why its end was not seen; `refused` why none was started, since
    this machine does not do what the cell asks; `missing_device` why its device cannot be used. With any of them
    nothing else is evidence. `warnings` of what was known before the process started go into its record.
    Times in seconds, memory in bytes. `oom_kills` counts the cell's own processes where it was in a `container`, else
    the machine's. `watched` holds what the machine did in each kept epoch, None where nobody watched; `task` what an
    external command showed; `usage` and `course` what the process used over time; `gpu_lost` what NVML said of a GPU
    that it reported lost. `machine` is the machine that the process ran on, None for the runner's own.
    """

    exit_code: int | None = None
    signal: int | None = None
    deadline_exceeded: bool = False
    oom_kills: int = 0
    infrastructure: str | None = None
    refused: str | None = None
    missing_device: str | None = None
    warnings: tuple[str, ...] = ()
    output_tail: str = ""
    wall_time_s: float | None = None
    start_time_s: float | None = None
    parent_cpu_time_s: float | None = None
    peak_tree_memory_bytes: int | None = None
    surroundings: Surroundings = Surroundings()
    watched: tuple[Watched, ...] | None = None
    container: Container | None = None
    task: TaskObservation | None = None
    usage: Usage | None = None
    course: UsageSeries | None = None
    gpu_lost: str | None = None
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class WaitingCell:
    """A cell of the run that waits while another one works: its name, and the process above all of its own."""

    name: str
    root: int


class Running(Protocol):
    """A process that was started. Each method returns when the process has come that far, or has ended.

    Between two calls the process rests: what works on a machine at one time is one cell.
    """

    def calibrated(self) -> float | None:
        """Return the seconds of a step that the process found; None when it ended before, or was told its steps."""

    def resume(self, steps: int) -> None:
        """Tell a calibrated process its steps per epoch; it goes on at its next turn."""

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Have the process go on until it rests: the first time before its first kept epoch, then after each of them.

        `waiting` are the run's other cells that are alive. Return False when the process has ended.
        """

    def root(self) -> int | None:
        """Return the process above all that this cell started, by its id on this machine; None once it has ended.

        None, too, if the executor's processes are not on this machine.
        """

    def resident_bytes(self) -> int:
        """Return the memory the process and its own hold, at the most seen so far."""

    def finish(self) -> Outcome:
        """Have the process do all that is left, and return what was seen once it has ended or its time was up."""

    def abandon(self) -> None:
        """End the process; nothing is to be learnt from it any more."""


class Executor(Protocol):
    """Starts cells' processes and reports what it saw."""

    name: str

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why this backend cannot run here on this device, None when it can, as far as that shows beforehand."""

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block of repeats of cells with these settings: nothing of the last block is reused.

        What takes its time to start need not have started; `await_block` waits for it, before anything is measured.
        """

    def await_block(self) -> None:
        """Return once everything that the block needs has started."""

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job's process; `timeout_s` counts while it is waited for. `close` leaves no process behind."""

    def close(self) -> None:
        """Let go of everything."""
