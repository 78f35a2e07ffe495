"""Clocks of all GPUs of a cell, locked if it requests that."""

from __future__ import annotations

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.executors.supervise.visible_gpus import CellClocks
from keras_matrix.runner.machine.gpus.readings import ReadableGpu
from tests.conftest import make_settings

LOCKED = make_settings(device="gpu", clocks="locked")
FREE = make_settings(device="gpu")


class FakeGpu(ReadableGpu):
    """Appends what it is requested to do to `calls`; GPU 9 refuses to be locked."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def lock(self) -> str | None:
        self.calls.append(f"lock {self.name}")
        return "Insufficient Permissions" if self.name == "9" else None

    def unlock(self) -> None:
        self.calls.append(f"unlock {self.name}")


def fake_clocks() -> tuple[CellClocks, list[str]]:
    calls: list[str] = []
    return CellClocks(lambda gpu: FakeGpu(gpu, calls)), calls


def test_gpus_are_locked_once_and_unlocked_when_the_next_cell_does_not_lock_them() -> None:
    clocks, calls = fake_clocks()
    assert [clocks.suit(LOCKED, ("0", "1")), clocks.suit(LOCKED, ("0",)), clocks.suit(FREE, ("0",))] == [None] * 3
    assert calls == ["lock 0", "lock 1", "unlock 1", "unlock 0"]
    assert clocks.suit(make_settings(), ()) is None
    clocks.release()
    assert calls[4:] == []


def test_gpu_that_cannot_be_locked_refuses_the_cell() -> None:
    clocks, calls = fake_clocks()
    refused = clocks.suit(LOCKED, ("0", "9"))
    assert refused is not None
    assert "cannot be locked here: Insufficient Permissions; it takes root" in refused
    clocks.release()
    assert calls == ["lock 0", "lock 9", "unlock 0"]


def test_gpu_that_cannot_be_opened_refuses_the_cell() -> None:
    refused = CellClocks(lambda gpu: Unread("NVML: Driver Not Loaded")).suit(LOCKED, ("0",))
    assert refused is not None
    assert "cannot be locked here: NVML: Driver Not Loaded; it takes root" in refused
