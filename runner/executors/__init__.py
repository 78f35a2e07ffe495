"""Executors: where a cell's process runs. The interface is `Executor`; `registry` lists each with its contract.

To add one, read `contract`: the obligations of an executor whose cells run on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from keras_matrix.analysis.surroundings.disturbance import MeasuredStretch
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.instruments.usage import Usage, UsageSeries
from keras_matrix.records.schema import Container, Machine, Surroundings
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors.tasks.observation import TaskObservation


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor observed of one process, without judging it.

    `infrastructure` says why the process could not be started or its end was not observed; `refused` why it was not
    started, since this machine cannot do what the cell requests; `missing_device` why its device cannot be used. If
    any of them is set, the other fields are not evidence. `warnings` were known before the process started and go into
    its record. Times in seconds, memory in bytes. `oom_kills` counts the cell's own processes if it was in a
    `container`, else the machine's. `watched` is what the machine did in each measured epoch, None if it was not
    watched; `task` the observation of an external command; `usage` and `usage_series` what the process used over time;
    `memory_readings` are the epochs done and its anonymous memory at readings in and around the measured epochs;
    `gpu_lost` NVML's message about a lost GPU. `machine` ran the process, None for the runner's own machine;
    `gpu_place` are the GPUs of its place, if the session uses several at the same time.
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
    watched: tuple[MeasuredStretch, ...] | None = None
    container: Container | None = None
    task: TaskObservation | None = None
    usage: Usage | None = None
    usage_series: UsageSeries | None = None
    memory_readings: tuple[tuple[float, int], ...] = ()
    gpu_lost: str | None = None
    machine: Machine | None = None
    gpu_place: GpuPlace | None = None


@dataclass(frozen=True, slots=True)
class WaitingCell:
    """A cell of the run that waits while another one works: its name, and the root of its process tree.

    With `works` it is at another place of the machine, where it does not wait; its use is the run's own all the same.
    """

    name: str
    root: int
    works: bool = False


class Running(Protocol):
    """A process that was started. Each method returns when the process has reached that point, or has ended.

    Between two calls the process rests, so that only one cell works on a machine at a time.
    """

    def calibrated(self) -> float | None:
        """Return the process's step time in seconds; None if it ended before, or if its job fixes the steps."""

    def resume(self, steps: int) -> None:
        """Set the steps per epoch of a calibrated process, which receives them at its next turn."""

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        """Let the process run until it rests: first before its first measured epoch, then after each of them.

        `waiting` are the run's other live cells. Return False when the process has ended.
        """

    def root(self) -> int | None:
        """Return the id on this machine of the root of the cell's process tree.

        For a cell of `ProcessExecutor` that is the server that started it. None once it has ended, and if the
        executor's processes are not on this machine.
        """

    def resident_bytes(self) -> int:
        """Return the peak memory of the process tree so far."""

    def finish(self) -> Outcome:
        """Let the process run to its end or its time limit, and return what was observed."""

    def abandon(self) -> None:
        """End the process and discard its outcome."""

    def kill(self) -> None:
        """Kill the process, from any thread: a call that waits for it returns."""


class Executor(Protocol):
    """Starts cells' processes and reports what it observed."""

    name: str

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        """Return why this backend cannot run here on this device; None if nothing is known to prevent it."""

    def begin_block(self, settings: Sequence[Settings]) -> None:
        """Begin a block of repeats of cells with these settings, reusing nothing of the last block.

        Slow starts may continue in the background; `await_block` waits for them, before anything is measured.
        """

    def await_block(self) -> None:
        """Return once everything that the block needs has started."""

    def start(self, job: Job, timeout_s: float) -> Running:
        """Start the job's process, whose waits take at most `timeout_s` together. `close` leaves no process behind."""

    def close(self) -> None:
        """Release all processes and resources."""
