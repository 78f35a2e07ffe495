"""The executor of the self test: other devices work while a cell is measured, and rest while it rests."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keras_matrix.records.host.device_lists import GpuChoice
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.executors import Outcome, WaitingCell, others_busy
from keras_matrix.runner.executors.others_busy import NeighbourDevice, OthersBusy, half_of_cpus, other_devices
from keras_matrix.runner.machine.gpus.nvml import PresentGpus
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor, FakeRunning

FOUR = PresentGpus(("GPU-a", "GPU-b", "GPU-c", "GPU-d"), ("NVIDIA A100",) * 4)
ONLY_B, ONLY_C, ONLY_D = (NeighbourDevice("all", GpuChoice(name)) for name in "123")


def fc(workers: int) -> object:
    return make_settings(workload="fc", device="gpu", params={"mode": "fc_data", "workers": workers})


@pytest.mark.parametrize(
    ("settings", "choice", "expected"),
    [
        (make_settings(device="gpu"), GpuChoice(), [ONLY_B, ONLY_C, ONLY_D]),
        (make_settings(device="gpu"), GpuChoice("3,1"), [ONLY_B]),
        (make_settings(device="gpu"), GpuChoice(model="H100"), []),
        (fc(2), GpuChoice(), [NeighbourDevice("all", GpuChoice("2,3"))]),
        (fc(3), GpuChoice(), []),
    ],
)
def test_other_gpus_are_those_that_the_cell_may_use_but_does_not(
    settings: object, choice: GpuChoice, expected: list[NeighbourDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert other_devices(settings, choice, FOUR) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [("0-1", ["2-3", "4-5"]), ("5-5", ["0-0", "1-1", "2-2", "3-3", "4-4"]), ("0-3", []), ("all", [])],
)
def test_on_a_cpu_other_devices_are_sets_of_as_many_cpus(
    cpus: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert other_devices(make_settings(cpus=cpus)) == [NeighbourDevice(one, GpuChoice()) for one in expected]
    assert half_of_cpus() == "0-2"


@dataclass(slots=True)
class Companion(FakeExecutor):
    """Another device: counts the turns of its process, which ends at `ends_at`; its turn `fails_at` raises."""

    worked: threading.Event = field(default_factory=threading.Event)
    resting: bool = True
    ends_at: int = 1 << 30
    fails_at: int = 1 << 30

    def start(self, job: Job, timeout_s: float) -> FakeRunning:
        return _Turning(self, job)


class _Turning(FakeRunning):
    """A process that notes its turns."""

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        companion = self.executor
        assert isinstance(companion, Companion)
        companion.resting = False
        companion.turns.append(self.job)
        companion.worked.set()
        if len(companion.turns) >= companion.fails_at:
            raise OSError("the server is gone")
        companion.resting = True
        return len(companion.turns) < companion.ends_at


@dataclass(slots=True)
class Cell(FakeExecutor):
    """The cell's executor: each measured epoch lasts until the companion has worked in it."""

    companion: Companion = field(default_factory=Companion)

    def start(self, job: Job, timeout_s: float) -> FakeRunning:
        return _Measured(self, job)


class _Measured(FakeRunning):
    """A process whose epochs wait for the companion."""

    def turn(self, waiting: Sequence[WaitingCell] = ()) -> bool:
        cell = self.executor
        assert isinstance(cell, Cell)
        if cell.turns:
            cell.companion.worked.clear()
            assert cell.companion.worked.wait(10), "the other device rests during a measured epoch"
        else:
            assert cell.companion.turns == [], "the other device starts after the cell has warmed up"
        cell.turns.append(self.job)
        return True


def job_in(folder: Path) -> Job:
    return Job("n", "c" * 16, 0, 0, make_settings(cpus="0-0", epochs=4), 4, str(folder / "cell"), [], None, None)


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[OthersBusy, Cell, Job]:
    monkeypatch.setattr(others_busy, "other_devices", lambda *arguments: [NeighbourDevice("1-1", GpuChoice())])
    (tmp_path / "cell").mkdir()
    cell = Cell()
    return OthersBusy(cell, lambda: cell.companion), cell, job_in(tmp_path)


def measured(executor: OthersBusy, job: Job) -> Outcome:
    executor.begin_block([job.settings])
    executor.await_block()
    running = executor.start(job, 10.0)
    for _ in range(4):
        running.turn()
    return running.finish()


def test_others_work_during_each_measured_epoch_and_are_ended_with_the_cell(busy: tuple[OthersBusy, Cell, Job]) -> None:
    executor, cell, job = busy
    outcome = measured(executor, job)
    assert (outcome.exit_code, outcome.infrastructure) == (0, None)
    assert cell.companion.resting
    [ended] = cell.companion.abandoned
    assert (ended.settings.cpus, ended.settings.epochs, ended.steps) == ("1-1", others_busy.EPOCHS, job.steps)
    assert ended.folder != job.folder
    assert ended.nonce != job.nonce
    executor.close()
    assert (cell.closed, cell.companion.closed) == (True, True)


def test_a_process_on_another_device_that_ends_leaves_no_measurement(busy: tuple[OthersBusy, Cell, Job]) -> None:
    executor, cell, job = busy
    cell.companion.ends_at = 1
    executor.begin_block([job.settings])
    executor.await_block()
    running = executor.start(job, 10.0)
    running.turn()
    outcome = running.finish()
    assert outcome.infrastructure == (
        "others_busy: a process on another device did not work: it ended before its first measured epoch"
    )


def test_others_work_too_during_a_repeat_that_is_measured_by_itself(busy: tuple[OthersBusy, Cell, Job]) -> None:
    executor, cell, job = busy
    executor.begin_block([job.settings])
    executor.await_block()
    assert executor.start(job, 10.0).finish().infrastructure is None
    assert len(cell.turns) == 1 + job.settings.epochs - job.settings.discard
    assert len(cell.companion.abandoned) == 1


def test_an_error_of_a_process_on_another_device_leaves_no_measurement(busy: tuple[OthersBusy, Cell, Job]) -> None:
    executor, cell, job = busy
    cell.companion.fails_at = 2
    executor.begin_block([job.settings])
    executor.await_block()
    running = executor.start(job, 10.0)
    for _ in range(2):
        running.turn()
    assert running.finish().infrastructure == (
        "others_busy: a process on another device did not work: OSError: the server is gone"
    )


def test_an_abandoned_cell_ends_the_others(busy: tuple[OthersBusy, Cell, Job]) -> None:
    executor, cell, job = busy
    running = executor.start(job, 10.0)
    running.turn()
    running.abandon()
    assert len(cell.companion.abandoned) == len(cell.abandoned) == 1
