"""The executor reads every GPU of a cell around its measured epochs, and reports one that was lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import GpuEpochs
from keras_matrix.runner.cell.job import Job, write_job
from keras_matrix.runner.executors.supervise import epochs
from keras_matrix.runner.executors.supervise.epochs import Alive, Epochs
from keras_matrix.runner.executors.supervise.watch import Watch
from tests.conftest import make_settings

LOST = "GPU 1: GPU is lost"


class FakeGpus:
    """The GPUs of a cell, which note when they are read."""

    sampled: tuple[Any, ...] = ()
    lost = LOST
    unread = None

    def __init__(self, names: Sequence[str], events: list[str]) -> None:
        self.names, self._events = names, events

    def begin(self) -> None:
        self._events.append("begin")

    def go(self) -> None:
        self._events.append("go")

    def end(self) -> None:
        self._events.append("end")

    def epochs(self) -> list[GpuEpochs | None]:
        return [GpuEpochs([], [], [], [], [], [], [], [], uuid=f"GPU-{name}") for name in self.names]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the readings of the counters, and of the GPUs of each cell, which may use two of them."""
    found: list[str] = []
    read: Callable[[Any], Any] = epochs.Sampler.read
    monkeypatch.setattr(epochs.Sampler, "read", lambda sampler: (found.append("counters"), read(sampler))[1])
    monkeypatch.setattr(epochs, "CellGpus", lambda names: FakeGpus(names, found))
    monkeypatch.setattr(epochs, "gpus_if_visible", lambda settings, choice: ("0", "1"))
    return found


def a_job(folder: Path) -> Job:
    settings = make_settings(device="gpu", epochs=2, discard=1)
    return Job("nonce", cell_id(settings), 0, 0, settings, 10, str(folder), [], None, None)


def test_every_gpu_of_a_cell_has_figures(events: list[str], tmp_path: Path) -> None:
    found = Epochs(a_job(tmp_path))
    found.close()
    figures = found.gpu_figures()
    assert [one.uuid for one in (figures["gpu"], *figures["further_gpus"])] == ["GPU-0", "GPU-1"]


def test_the_energy_of_an_epoch_is_read_last_before_it_and_before_the_counters_after_it(
    events: list[str], tmp_path: Path
) -> None:
    found = Epochs(a_job(tmp_path))
    found.begin(Alive(os.getpid(), os.getpid()))
    events.append("epoch")
    found.end()
    found.close()
    assert events == ["begin", "counters", "go", "epoch", "end", "counters"]


class EndedParent:
    """Starts nothing: its process has already ended well."""

    container = root = None
    alone = False

    def __init__(self) -> None:
        self.connection, self._writer = os.pipe()
        os.write(self._writer, b".")

    def begin(self, order: dict[str, Any], output: int) -> int:
        return os.getpid()

    def receive(self) -> dict[str, Any]:
        return {"exited": 0}

    def kill(self, pid: int) -> None:
        raise AssertionError("the process has ended")

    def release(self) -> None:
        os.close(self.connection)
        os.close(self._writer)


@pytest.mark.fault("F14", mutation="the outcome of a process does not name the lost GPU", recorded=True)
@pytest.mark.usefixtures("events")
def test_the_outcome_of_a_process_names_the_gpu_that_was_lost(tmp_path: Path) -> None:
    job = a_job(tmp_path)
    write_job(job)
    watch = Watch(EndedParent(), job, {}, timeout_s=10.0)
    assert watch.finish().gpu_lost == LOST
