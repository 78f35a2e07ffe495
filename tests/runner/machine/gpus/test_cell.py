"""The GPUs of a cell: read at both ends of each epoch; unreadable values are reported, a lost GPU is evidence."""

from __future__ import annotations

from typing import Any

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import GpuLost, Nvml
from keras_matrix.runner.machine.gpus.readings import CellGpus, GpuProperties, GpuReading, ReadableGpu, Unreadable


class Gpu(ReadableGpu):
    """A GPU that draws 100 W times its number, by a clock that moves a second at each reading."""

    def __init__(self, number: int) -> None:
        super().__init__(Nvml(None), None, None)
        self.number, self.now_s = number, 0.0

    def energy_j(self) -> float | None:
        return 100.0 * self.number * self.now_s

    def read(self) -> GpuReading:
        self.now_s += 1
        return GpuReading(at_s=self.now_s, energy_j=self.energy_j(), temperature_c=50.0 + self.now_s)

    def with_energy_now(self, reading: GpuReading) -> GpuReading:
        self.now_s += 1
        return GpuReading(at_s=self.now_s, energy_j=self.energy_j(), temperature_c=reading.temperature_c)

    def identity(self) -> GpuProperties:
        return GpuProperties(f"GPU-{self.number}", "9.0", mig=False)


def opening(**found: Any) -> Any:
    return lambda name: found[f"gpu{name}"]


def an_epoch(gpus: CellGpus) -> None:
    gpus.begin()
    gpus.go()
    gpus.end()


def test_each_gpu_of_a_cell_has_its_own_readings() -> None:
    gpus = CellGpus(("1", "3"), opening(gpu1=Gpu(1), gpu3=Gpu(3)))
    an_epoch(gpus)
    an_epoch(gpus)
    first, second = gpus.epochs()
    assert first is not None
    assert second is not None
    assert (first.uuid, second.uuid) == ("GPU-1", "GPU-3")
    assert (first.average_powers_w, second.average_powers_w) == ([100.0, 100.0], [300.0, 300.0])
    assert first.temperatures_c == [51.0, 53.0, 56.0]


def test_the_energy_of_an_epoch_begins_with_the_epoch_and_not_with_the_reading_before_it() -> None:
    gpus = CellGpus(("1",), opening(gpu1=Gpu(1)))
    an_epoch(gpus)
    assert [one.epoch_energies_j for one in gpus.epochs() if one] == [[100.0]]


def test_a_gpu_that_cannot_be_read_is_named_with_the_reason() -> None:
    gpus = CellGpus(("1", "7"), opening(gpu1=Gpu(1), gpu7=Unread("NVML: Invalid Argument")))
    an_epoch(gpus)
    assert [one is None for one in gpus.epochs()] == [False, True]
    assert gpus.unread == "GPU 7: NVML: Invalid Argument"
    assert [type(one) for one in gpus.sampled] == [Gpu, Unreadable]


def test_functions_without_permission_are_named() -> None:
    gpu = Gpu(1)
    gpu.not_permitted.append("nvmlDeviceGetPowerUsage")
    gpus = CellGpus(("0",), opening(gpu0=gpu))
    assert gpus.unread == "GPU 0: NVML: Insufficient Permissions: nvmlDeviceGetPowerUsage"


def test_a_gpu_is_lost_when_opened_or_later() -> None:
    opened_late = CellGpus(("0",), opening(gpu0=GpuLost("NVML: GPU is lost")))
    gpu = Gpu(1)
    gpus = CellGpus(("0",), opening(gpu0=gpu))
    assert gpus.lost is None
    gpu.lost = "GPU is lost"
    assert (opened_late.lost, gpus.lost) == ("GPU 0: GPU is lost", "GPU 0: GPU is lost")


def test_a_cell_without_gpus_reads_nothing() -> None:
    gpus = CellGpus(())
    an_epoch(gpus)
    assert (gpus.epochs(), gpus.sampled, gpus.unread, gpus.lost) == ([], (), None, None)
