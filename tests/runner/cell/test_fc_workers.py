"""What a cell of an FC mode learns from its workers, which are devices of its process or separate processes."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.models.fc.ranks import WorkerDied
from keras_matrix.models.fc.worker_group import device_peaks_bytes
from keras_matrix.records.fc.spec import WorkerPlacement
from keras_matrix.records.schema import Times
from keras_matrix.runner.cell import fc
from keras_matrix.runner.cell.measured_epochs import MEASURED_EPOCHS, PROCESS

PLUG: Any = SimpleNamespace(peak_device_memory_bytes=lambda: 7)
KEPT: Any = SimpleNamespace(allocated=SimpleNamespace(sizes_bytes=[5, 6], peak_span=MEASURED_EPOCHS))


def places(process: int | None) -> list[WorkerPlacement]:
    return [WorkerPlacement(worker, f"cuda:{worker}", [], [], [], process=process) for worker in range(2)]


def test_the_peak_of_worker_processes_on_gpus_is_that_of_the_worker_with_most() -> None:
    found = fc._memory(PLUG, KEPT, [100, 300], places(process=1))
    # The allocator's memory of this process between epochs is not that of the workers.
    assert (found.peak_device_memory_bytes, found.epoch_device_memory_bytes) == (300, [])
    assert found.peak_device_memory_span == PROCESS


@pytest.mark.parametrize(("peaks", "peak"), [([100, 300], 300), (None, 7)])
def test_the_peak_of_workers_in_this_process_is_that_of_the_device_with_most(
    peaks: list[int] | None, peak: int
) -> None:
    found = fc._memory(PLUG, KEPT, peaks, places(process=os.getpid()))
    assert (found.peak_device_memory_bytes, found.epoch_device_memory_bytes) == (peak, [5, 6])
    assert found.peak_device_memory_span == MEASURED_EPOCHS


def device(statistics: dict[str, int] | None) -> Any:
    return SimpleNamespace(memory_stats=lambda: statistics)


@pytest.mark.parametrize(
    ("devices", "peaks"),
    [
        ([device({"peak_bytes_in_use": 3}), device({"peak_bytes_in_use": 0})], [3, 0]),
        ([device(None), device(None)], []),
        ([device({"peak_bytes_in_use": 3}), device({})], []),
    ],
)
def test_jax_reports_the_peak_of_every_device_or_of_none(devices: list[Any], peaks: list[int]) -> None:
    assert device_peaks_bytes(devices) == peaks


def test_a_worker_that_dies_while_collectives_are_timed_leaves_the_cell_its_figures() -> None:
    def dying(steps: int, epochs: int) -> None:
        raise WorkerDied("rank 1 of 2 was ended by signal 6 (SIGABRT)")

    group: Any = SimpleNamespace(communication=dying)
    found = fc._communication(group, Times(step_time_s=0.01), 10)
    assert found == (None, "WorkerDied: rank 1 of 2 was ended by signal 6 (SIGABRT)")
