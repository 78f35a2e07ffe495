"""The runner's readings of GPUs, through the real nvidia-ml-py over the fake driver library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import GpuLost
from keras_matrix.runner.machine.gpus.readings import CellGpus, GpuProperties, GpuReading, GpuUse, ReadableGpu, open_gpu
from tests.gpu.fake_nvml import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, RESET_REQUIRED, FakeDriver

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("pynvml")]  # it compiles a library

N_A = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


def gpu(name: str = "0") -> ReadableGpu:
    found = open_gpu(name)
    assert isinstance(found, ReadableGpu), found
    return found


def test_a_reading_is_in_the_units_of_its_names(driver: FakeDriver) -> None:
    driver.set(sm_clock_mhz=1410, memory_clock_mhz=1593, temperature_c=61, power_w=312.5, throttle_mask=4)
    found = gpu().read()
    assert (found.sm_clock_hz, found.memory_clock_hz) == (1_410_000_000, 1_593_000_000)
    assert (found.temperature_c, found.power_w, found.throttle_mask) == (61.0, 312.5, 4)


def test_energy_between_two_readings_is_power_times_time(driver: FakeDriver) -> None:
    driver.set(power_w=400_000)
    gpus = CellGpus(("0",))
    gpus.begin()
    gpus.go()
    gpus.end()
    (found,) = gpus.epochs()
    assert found is not None
    # Time is read next to the counter, not with it: the two are microseconds apart, the stretch is as short.
    assert found.epoch_energies_j[0] is not None
    assert found.epoch_energies_j[0] > 0


def test_instantaneous_power_is_preferred_to_the_average_of_a_second(driver: FakeDriver) -> None:
    driver.set(power_w=500, power_average_w=120)
    one = gpu()
    assert (one.use(()).power_w, one.power_source) == (500.0, "instant")
    driver.refuse("field186", NOT_SUPPORTED)
    other = gpu()
    assert (other.use(()).power_w, other.power_source) == (120.0, "power_usage")


def test_values_that_the_gpu_does_not_provide_are_not_measured(driver: FakeDriver) -> None:
    for name in N_A:
        driver.refuse(name, NOT_SUPPORTED)
    found = CellGpus(("0",))
    found.begin()
    found.end()
    assert [one.use({1}) for one in found.sampled] == [GpuUse()]
    (epochs,) = found.epochs()
    assert epochs is not None
    assert (epochs.powers_w, epochs.average_powers_w, found.unread, found.lost) == ([None, None], [None], None, None)


def test_functions_without_permission_are_not_measured_and_named(driver: FakeDriver) -> None:
    driver.refuse("nvmlDeviceGetTotalEnergyConsumption", NO_PERMISSION, gpu=1)
    gpus = CellGpus(("0", "1"))
    gpus.begin()
    gpus.end()
    assert gpus.unread == "GPU 1: NVML: Insufficient Permissions: nvmlDeviceGetTotalEnergyConsumption"


def test_memory_of_the_processes_of_a_cell_is_theirs(driver: FakeDriver) -> None:
    driver.set(memory_used=9 << 30, processes=f"{os.getpid()}:{5 << 30},1:{1 << 30}")
    found = gpu().use({os.getpid()})
    assert (found.memory_used_bytes, found.process_memory_bytes) == (9 << 30, 5 << 30)


@pytest.mark.parametrize("name", ["1", "GPU-5b7e", "GPU-5b7e0000-0000-0000-0000-000000000001"])
def test_a_gpu_is_found_by_its_index_and_its_full_or_shortened_uuid(driver: FakeDriver, name: str) -> None:
    driver.set(gpu1={"uuid": "GPU-5b7e0000-0000-0000-0000-000000000001", "compute_capability": "8.6"})
    assert gpu(name).identity() == GpuProperties("GPU-5b7e0000-0000-0000-0000-000000000001", "8.6", mig=False)


@pytest.mark.parametrize("name", ["7", "GPU-none", "", "MIG-none"])
def test_a_gpu_that_does_not_exist_is_unread_with_the_number_of_gpus(name: str) -> None:
    assert open_gpu(name) == Unread("the driver reports 2 GPUs", absent=True)


@pytest.mark.parametrize(("name", "uuid"), [("MIG-b", "MIG-b"), ("0", "MIG-a")])
def test_a_mig_device_has_its_own_memory_and_the_card_s_power(driver: FakeDriver, name: str, uuid: str) -> None:
    driver.set(gpu0={"mig": 1, "mig_uuids": "MIG-a,MIG-b", "mig_memory_used": 3 << 30, "memory_used": 60 << 30})
    one = gpu(name)
    assert one.identity() == GpuProperties(uuid, "9.0", mig=True)
    assert one.use(()) == GpuUse(3 << 30, None, pytest.approx(0.9), 300.0)


def test_a_gpu_that_is_lost_between_two_readings_is_evidence(driver: FakeDriver, tmp_path: Path) -> None:
    driver.set(gpu1={"lost_once_file": tmp_path / "lost"})
    gpus = CellGpus(("0", "1"))
    gpus.begin()
    assert gpus.lost is None
    (tmp_path / "lost").touch()
    gpus.end()
    assert gpus.lost == "GPU 1: GPU is lost"
    found: list[Any] = gpus.epochs()
    assert [one.sm_clocks_hz for one in found] == [[1_980_000_000] * 2, [1_980_000_000, None]]


def test_a_gpu_that_is_lost_from_the_start_is_evidence(driver: FakeDriver) -> None:
    driver.refuse("nvmlDeviceGetHandleByIndex_v2", GPU_IS_LOST)
    assert open_gpu("0") == GpuLost("NVML: GPU is lost")
    assert CellGpus(("0",)).lost == "GPU 0: GPU is lost"


def test_a_gpu_that_needs_a_reset_between_two_readings_is_evidence(driver: FakeDriver) -> None:
    gpus = CellGpus(("0", "1"))
    gpus.begin()
    driver.refuse("nvmlDeviceGetTemperature", RESET_REQUIRED, gpu=1)
    gpus.end()
    assert gpus.lost == "GPU 1: GPU requires restart"


def test_a_reading_of_a_lost_gpu_is_all_unmeasured(driver: FakeDriver, tmp_path: Path) -> None:
    one = gpu()
    (tmp_path / "lost").touch()
    driver.set(lost_once_file=tmp_path / "lost")
    found = one.read()
    assert found == GpuReading(at_s=found.at_s)
