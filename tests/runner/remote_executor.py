"""A way to run cells on another machine, as someone would add it: this module and the row `ENTRY`.

The machine is a folder, the one that `--grid` names: a cell's files are copied there and back, and nothing else of this
machine is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.schema import Machine
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Run
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors import Contract, Executor, Outcome, Running, WaitingCell
from keras_matrix.runner.executors.registry import ExecutorEntry, ExecutorRequest, Executors, Option
from keras_matrix.runner.matrix.reader import Cell
from tests.fakes.executor import FakeExecutor

NODE = Machine(host_id="9" * 16, cpu_model="a CPU of the grid", logical_cpus=64)
ENTRY = ExecutorEntry(
    name="grid",
    module="tests.runner.remote_executor",
    summary="each on a node of a grid",
    contract=Contract(local_machine=False, local_pids=False, local_files=False, local_software=False),
    starts=("fresh",),
    place="a grid",
    guide="docs/grid.md",
    options=(Option("grid", "FOLDER", "the grid that runs cells"),),
)


class RemoteRun:
    """A process on the node, whose files are on the node until it has ended."""

    def __init__(self, job: Job, inner: Running, node: Node) -> None:
        self._job, self._inner, self._node = job, inner, node

    def calibrated(self) -> float | None:
        return self._inner.calibrated()

    def resume(self, steps: int) -> None:
        self._inner.resume(steps)

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        assert not waiting, "no process of this machine waits for one of the node"
        return self._inner.turn()

    def root(self) -> int | None:
        return None

    def resident_bytes(self) -> int:
        raise AssertionError("the memory of this machine is not what a process of the node needs")

    def finish(self) -> Outcome:
        outcome = self._inner.finish()
        shutil.copytree(self._node.place_of(self._job), self._job.folder, dirs_exist_ok=True)
        return replace(outcome, machine=self._node.machine)

    def abandon(self) -> None:
        self._inner.abandon()

    def kill(self) -> None:
        self._inner.kill()


class Node:
    """The executor of one node; its processes are pretended."""

    name = "grid"

    def __init__(self, disk: Path, machine: Machine | None = NODE) -> None:
        self.disk, self.machine, self._processes = disk, machine, FakeExecutor()

    def place_of(self, job: Job) -> Path:
        return self.disk / Path(job.folder).name

    def missing(self, backend: str, device: str = "cpu") -> str | None:
        return self._processes.missing(backend, device)

    def begin_block(self, settings: Sequence[Settings]) -> None:
        self._processes.begin_block(settings)

    def await_block(self) -> None:
        self._processes.await_block()

    def start(self, job: Job, timeout_s: float) -> Running:
        assert job.dataset_dir is None, "the data sets of this machine are not the node's"
        there = shutil.copytree(job.folder, self.place_of(job), dirs_exist_ok=True)
        return RemoteRun(job, self._processes.start(replace(job, folder=str(there)), timeout_s), self)

    def close(self) -> None:
        self._processes.close()


class OnGrid(Executors):
    """What makes the executors of a command on the grid."""

    def software(self, cells: Sequence[Cell]) -> Mapping[str, str]:
        return {"grid": "1.0"}

    def end_leftovers(self, results: Path) -> None:
        shutil.rmtree(self._disk, ignore_errors=True)

    def executor(self, run: Run, python: str | None) -> Executor:
        return Node(self._disk)

    @property
    def _disk(self) -> Path:
        if self.request.options["grid"] is None:
            raise UsageError("--grid: must name a grid")
        return Path(self.request.options["grid"])


def make(entry: ExecutorEntry, request: ExecutorRequest) -> Executors:
    return OnGrid(entry, request)
