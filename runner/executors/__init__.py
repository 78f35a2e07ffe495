"""Executors: where a cell's process runs. The interface is `Executor`; `registry` lists each with its `Contract`.

To write one, begin with `Contract`, then read `Executor`.
A cell's process receives a `Job` and leaves its result in `Job.folder`. An executor may start that process anywhere, if
its row in `runner.executors.registry` states what of the process is on the runner's machine. The runner relies on that
row alone and compares no executor's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from keras_matrix.analysis.surroundings.disturbance import MeasuredStretch
from keras_matrix.records.instruments.gpu_place import GpuPlace
from keras_matrix.records.instruments.usage import Usage, UsageSeries
from keras_matrix.records.schema import Container, Machine, Surroundings
from keras_matrix.records.settings import Settings
from keras_matrix.records.task import TaskRun
from keras_matrix.runner.cell.job import Job

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an executor observed of one process, without judging it.

    `infrastructure` says why the process could not be started or its end was not observed; `refused` why it was not
    started, since this machine cannot do what the cell requests; `missing_device` why its device cannot be used. If
    any of them is set, the other fields are not evidence. `warnings` were known before the process started and go into
    its record. `limit_s` is its time limit. Times in seconds, memory in bytes. `oom_kills` counts the cell's own
    processes if it was in a `container`, else the machine's. `watched` is what the machine did in each measured epoch,
    None if it was not watched; `task` the observation of an external command; `usage` and `usage_series` what the
    process used over time; `memory_readings` are the epochs done and its anonymous memory at readings in and around the
    measured epochs; `gpu_lost` NVML's message about a lost GPU. `machine` ran the process, None for the runner's own
    machine; `gpu_place` are the GPUs of its place, if the session uses several at the same time.
    """

    exit_code: int | None = None
    signal: int | None = None
    deadline_exceeded: bool = False
    limit_s: float | None = None
    oom_kills: int | None = 0
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


@dataclass(frozen=True, slots=True)
class TaskObservation:
    """The command and its metrics.

    `never` is the reason why it could not be started, `no_device` the device that is missing, `too_few_devices`
    how many there are, `stopped` the reason why the runner ended it apart from the time limit, `caveats` warnings with
    their advice.
    """

    run: TaskRun
    never: str | None = None
    no_device: str | None = None
    stopped: str | None = None
    caveats: tuple[str, ...] = ()
    too_few_devices: str | None = None


@dataclass(frozen=True, slots=True)
class Contract:
    """Which parts of a cell are on the runner's own machine, and what the executor must do for those that are not.

    `local_machine`: cells run on the CPUs and GPUs of the runner's machine. If so, the runner examines this machine for
    them: its GPUs before the run, the CPUs that `cpus` requests, the free memory before a second process stays alive.
    If not, it examines nothing, and the executor refuses what its machines cannot do (`Outcome.refused`,
    `Outcome.missing_device`). Every `Outcome` of a process that ended then names the machine in `Outcome.machine`,
    which becomes the record's; without it the attempt is recorded as `infra`, since its figures belong to no machine.

    `local_pids`: `Running.root` is a process of this machine, which may be looked up in /proc. If not, `root` returns
    None, the executor itself samples memory, GPUs and disturbances where the process is, and reports them in the
    `Outcome` (None for what it does not measure); `end_leftovers` and `close` end the processes on their machine.

    `local_files`: the process reads and writes the files that the `Job` names, at these paths or mounted at others. If
    not, the executor copies `folder` to the process before it starts, and back before `finish` returns: the runner then
    reads result, trace, profile and model from there. `compile_cache_dir`, `autotune_dir`, `cuda_cache_dir` and
    `outputs_dir` are copied in the same way where they are not None. `import_roots` are only read. `dataset_dir` is
    a path on the cell's machine, None for the usual place there.

    `local_software`: cells run in the runner's Python environment, or in one named by --base-env or --new-env. If not,
    they bring their own, as an image does: `Executors.software` says which, the runner judges no installed version, and
    refuses these flags.
    """

    local_machine: bool = True
    local_pids: bool = True
    local_files: bool = True
    local_software: bool = True

    def problem(self, outcome: Outcome) -> str | None:
        """Return how an outcome breaks the contract, so that it cannot become a measurement; None if it does not."""
        has_ended = outcome.exit_code is not None or outcome.signal is not None or outcome.deadline_exceeded
        if has_ended and not self.local_machine and outcome.machine is None:
            return "machine: the executor does not say on which machine the process ran"
        return None
