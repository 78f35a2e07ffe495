"""A GPU through NVML, with a fake driver."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.codec import decode, to_json
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.schema import GpuEpochs
from keras_matrix.runner.machine.gpus.readings import (
    GpuProperties,
    GpuReading,
    GpuUse,
    ReadableGpu,
    open_gpu,
    over_epochs,
)
from tests.conftest import make_settings

LOCKED = make_settings(device="gpu", clocks="locked")
FREE = make_settings(device="gpu")


class Refusal(Exception):
    """NVML's error."""


class Driver:
    """What `pynvml` offers of one GPU.

    `forbidden` names calls that fail, `calls` has those that change something, `instant` the code and value in mW of
    the field of instantaneous power.
    """

    NVMLError = Refusal
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_CLOCK_LIMIT_ID_TDP = 0xFFFFFF01
    NVML_FI_DEV_POWER_INSTANT = 186

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = forbidden
        self.users: dict[int, int | None] = {7: 1 << 30, 8: 1 << 20, 99: 1 << 29}
        self.calls: list[tuple[Any, ...]] = []
        self.instant = (3, 0)  # not supported

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "forbidden"):
            return self.refuse
        return object.__getattribute__(self, name)

    def refuse(self, *_: Any) -> None:
        raise Refusal("Insufficient Permissions")

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"uuid {uuid}"

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1410, self.NVML_CLOCK_MEM: 1593}[kind]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return 61

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any:
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        return [SimpleNamespace(nvmlReturn=self.instant[0], value=SimpleNamespace(uiVal=self.instant[1]))]

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"GPU-of {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        return [0, 0]

    def nvmlDeviceIsMigDeviceHandle(self, handle: Any) -> int:
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 312_500

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=80 << 30, used=3 << 30, free=77 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.users.items()]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return 0x04 | 0x40 | 0x01

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        return 5_000_250

    def nvmlDeviceGetViolationStatus(self, handle: Any, policy: int) -> Any:
        return SimpleNamespace(referenceTime=1, violationTime={0: 2_000_000_000, 1: 500_000_000}[policy])

    def nvmlDeviceSetGpuLockedClocks(self, handle: Any, low: int, high: int) -> None:
        self.calls.append(("lock", handle, low, high))

    def nvmlDeviceResetGpuLockedClocks(self, handle: Any) -> None:
        self.calls.append(("reset", handle))


READ = GpuReading(
    sm_clock_hz=1_410_000_000,
    memory_clock_hz=1_593_000_000,
    temperature_c=61.0,
    power_w=312.5,
    throttle_mask=0x45,
    energy_j=5000.25,
    thermal_throttled_s=0.5,
    power_throttled_s=2.0,
)


def gpu(driver: Driver) -> ReadableGpu:
    found = open_gpu("0", driver)
    assert isinstance(found, ReadableGpu)
    return found


def test_a_reading_is_in_the_units_of_its_names() -> None:
    assert replace(gpu(Driver()).read(), at_s=None) == READ


def test_values_missing_in_the_driver_are_not_measured() -> None:
    driver = Driver("nvmlDeviceGetPowerUsage", "nvmlDeviceGetViolationStatus")
    found = replace(gpu(driver).read(), at_s=None)
    assert found == replace(READ, power_w=None, thermal_throttled_s=None, power_throttled_s=None)


def test_use_is_that_of_the_entire_gpu_and_of_the_given_processes() -> None:
    found = gpu(Driver()).use({7, 8, 9})
    assert found == GpuUse(3 << 30, (1 << 30) + (1 << 20), pytest.approx(0.87), 312.5)


@pytest.mark.parametrize("users", [{}, {99: 5}, {7: None}, {7: 5, 8: None}])
def test_memory_of_processes_missing_in_the_driver_is_not_measured(users: dict[int, int | None]) -> None:
    driver = Driver()
    driver.users = users
    assert gpu(driver).use({7, 8}).process_memory_bytes is None


def test_a_driver_that_refuses_everything_leaves_a_use_unmeasured() -> None:
    refused = ("MemoryInfo", "UtilizationRates", "ComputeRunningProcesses", "PowerUsage", "FieldValues")
    refused = (*refused, "TotalEnergyConsumption")
    found = gpu(Driver(*(f"nvmlDeviceGet{name}" for name in refused)))
    assert (found.use({7}), found.energy_j()) == (GpuUse(), None)


@pytest.mark.parametrize(("visible", "handle"), [("3", "index 3"), ("GPU-ab", "uuid GPU-ab")])
def test_the_gpu_is_the_one_that_the_cell_sees(visible: str, handle: str) -> None:
    driver = Driver()
    found = open_gpu(visible, driver)
    assert isinstance(found, ReadableGpu)
    found.unlock()
    assert driver.calls == [("reset", handle)]


def test_driver_that_is_not_loaded_is_reported() -> None:
    assert open_gpu("0", Driver("nvmlInit")) == Unread("NVML: Insufficient Permissions")


def test_without_the_library_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu("0") == Unread("nvidia-ml-py is not installed")


@pytest.mark.parametrize(
    ("driver", "why"),
    [(Driver(), None), (Driver("nvmlDeviceSetGpuLockedClocks"), "Insufficient Permissions")],
)
def test_clock_is_locked_at_the_rated_one_or_the_reason_returned(driver: Driver, why: str | None) -> None:
    found = open_gpu("0", driver)
    assert isinstance(found, ReadableGpu)
    assert found.lock() == why
    rated = Driver.NVML_CLOCK_LIMIT_ID_TDP
    assert driver.calls == ([] if why else [("lock", "index 0", rated, rated)])


def test_epochs_have_one_boundary_more_and_the_difference_of_each() -> None:
    after = replace(READ, temperature_c=66.0, throttle_mask=None, energy_j=5100.25, thermal_throttled_s=0.75)
    last = replace(after, energy_j=5050.0, power_throttled_s=2.5)
    found = over_epochs([(READ, after), (after, last)])
    assert found == GpuEpochs(
        sm_clocks_hz=[1_410_000_000] * 3,
        memory_clocks_hz=[1_593_000_000] * 3,
        temperatures_c=[61.0, 66.0, 66.0],
        powers_w=[312.5] * 3,
        throttle_reasons=["too hot (hardware), power cap", None, None],
        epoch_energies_j=[100.0, None],
        thermal_throttled_times_s=[0.25, 0.0],
        power_throttled_times_s=[0.0, 0.5],
        average_powers_w=[None, None],
    )
    assert decode(GpuEpochs, to_json(found)) == found


def test_the_power_of_an_epoch_is_its_energy_over_its_time() -> None:
    ends = [(GpuReading(energy_j=10.0, at_s=1.0), GpuReading(energy_j=160.0, at_s=1.5)), (GpuReading(), GpuReading())]
    found = over_epochs(ends, GpuProperties("GPU-a", "9.0", mig=False))
    assert found is not None
    assert (found.average_powers_w, found.uuid, found.compute_capability, found.mig) == (
        [300.0, None],
        "GPU-a",
        "9.0",
        False,
    )


@pytest.mark.parametrize(
    ("instant", "power_w", "source"), [((0, 480_000), 480.0, "instant"), ((3, 0), 312.5, "power_usage")]
)
def test_power_is_instantaneous_if_the_driver_provides_it(
    instant: tuple[int, int], power_w: float, source: str
) -> None:
    driver = Driver()
    driver.instant = instant
    found = gpu(driver)
    assert (found.use(()).power_w, found.power_source) == (power_w, source)


def test_power_samples_have_one_source() -> None:
    driver = Driver()
    driver.instant = (0, 480_000)
    found = gpu(driver)
    assert found.power_w() == 480.0
    driver.instant = (999, 0)
    assert found.power_w() is None


def test_without_epochs_there_is_no_reading() -> None:
    assert over_epochs([]) is None
