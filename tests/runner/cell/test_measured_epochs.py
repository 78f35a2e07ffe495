"""The peak of device memory covers the measured epochs: it is reset after the discarded ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell import fc, measured_epochs
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.measured_epochs import MEASURED_EPOCHS, Allocated, Compiling, MeasuredEpochs
from tests.conftest import make_settings


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the garbage collector of the tests' process as it is."""
    monkeypatch.setattr(measured_epochs, "settle", lambda: None)


def kept_noting(events: list[str]) -> MeasuredEpochs:
    """Return the measured epochs of a fake backend that can reset its peak and records its calls."""

    def note(event: str, answer: Any) -> Callable[[], Any]:
        return lambda: (events.append(event), answer)[1]

    adapter: Any = SimpleNamespace(
        compilations=lambda: None,
        graph_breaks=lambda: None,
        reset_peak_device_memory=note("reset", True),
        device_memory_bytes=note("size", 10),
        peak_device_memory_bytes=note("peak", 30),
    )
    turns: Any = SimpleNamespace(rest=note("rest", None), first_step_ended=lambda: None)
    return MeasuredEpochs(turns, Compiling(adapter), Allocated(adapter))


MEASURED = ["reset", "size", "rest", "epoch", "size", "rest", "epoch", "size", "peak", "rest"]


def settings(**changes: Any) -> Settings:
    return make_settings(epochs=4, discard=2, **changes)


def test_the_peak_of_device_memory_is_reset_once_before_the_first_measured_epoch() -> None:
    events: list[str] = []
    found = kept_noting(events)
    stretch = found.stretch(settings(), 3)
    for epoch in range(stretch.epochs):
        stretch.before(epoch)
        events.append("epoch")
    found.end()
    assert events == ["epoch", "epoch", *MEASURED]
    assert (found.allocated.peak_bytes, found.allocated.peak_span) == (30, MEASURED_EPOCHS)


def test_peak_of_device_memory_of_workers_is_reset_before_the_first_measured_epoch(tmp_path: Path) -> None:
    events: list[str] = []
    found = kept_noting(events)
    worker_group: Any = SimpleNamespace(run=lambda steps: events.append("epoch"), loss=lambda: 1.0)
    own = settings(workload="fc", params={"mode": "fc_data", "workers": 1})
    fc._trained(Job("n", "c", 0, 0, own, 3, str(tmp_path), [], None, None), worker_group, found)
    # The first step and two discarded epochs come before.
    assert events == ["epoch", "epoch", "epoch", *MEASURED]
    assert found.allocated.peak_span == MEASURED_EPOCHS
