"""Clocks of all GPUs of a cell, locked where it asks for it."""

from __future__ import annotations

import pytest

from keras_matrix.records.settings import Settings
from keras_matrix.runner.executors.supervise.gpu_clocks import CellClocks
from keras_matrix.runner.host.gpus.readings import HeldClocks
from tests.conftest import make_settings

LOCKED = make_settings(device="gpu", clocks="locked")
FREE = make_settings(device="gpu")


class FakeClocks(HeldClocks):
    """Writes what it is asked to `calls`; GPU 9 refuses."""

    def __init__(self, gpu: str, calls: list[str]) -> None:
        self.gpu, self.calls = gpu, calls

    def suit(self, settings: Settings) -> str | None:
        self.calls.append(f"{settings.clocks} {self.gpu}")
        return "refused" if self.gpu == "9" else None

    def release(self) -> None:
        self.calls.append(f"release {self.gpu}")


@pytest.fixture
def calls() -> list[str]:
    return []


def test_each_gpu_of_a_cell_is_locked_and_those_of_the_last_cell_are_released(calls: list[str]) -> None:
    clocks = CellClocks(lambda gpu: FakeClocks(gpu, calls))
    assert clocks.suit(LOCKED, ("0", "1")) is None
    assert clocks.suit(FREE, ("0",)) is None
    assert clocks.suit(make_settings(), ()) is None
    assert calls == ["locked 0", "locked 1", "release 1", "free 0", *calls[4:]]
    assert sorted(calls[4:]) == ["release 0", "release 1"]


def test_a_gpu_that_cannot_be_locked_refuses_the_cell(calls: list[str]) -> None:
    clocks = CellClocks(lambda gpu: FakeClocks(gpu, calls))
    assert clocks.suit(LOCKED, ("0", "9")) == "refused"
    clocks.release()
    assert calls == ["locked 0", "locked 9", "release 0", "release 9"]
