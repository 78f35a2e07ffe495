"""The fake driver library answers the real nvidia-ml-py with the structures and errors of NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.fake_nvml import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, FakeDriver

pytestmark = pytest.mark.process  # it compiles a library


def test_two_gpus_have_names_uuids_and_compute_capabilities(pynvml: Any, driver: FakeDriver) -> None:
    driver.set(gpu1={"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-abc", "compute_capability": "8.0"})
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    found = [(pynvml.nvmlDeviceGetName(one), pynvml.nvmlDeviceGetCudaComputeCapability(one)) for one in handles]
    assert found == [("NVIDIA H100 80GB HBM3", (9, 0)), ("NVIDIA A100-SXM4-40GB", (8, 0))]
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID("GPU-abc")) == 1
    assert (pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()) == ("580.65.06", 13000)


def test_memory_processes_and_power_are_those_of_the_file(pynvml: Any, driver: FakeDriver) -> None:
    driver.set(memory_used=5 << 30, processes="7:1024,8:2048", power_w=250, power_average_w=90)
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used == 5 << 30
    found = [(one.pid, one.usedGpuMemory) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    assert found == [(7, 1024), (8, 2048)]
    instant = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
    assert (instant.nvmlReturn, instant.value.uiVal) == (0, 250_000)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 90_000


def test_energy_moves_with_the_clock(pynvml: Any) -> None:
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    while pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == first:
        pass
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) > first


def test_a_mig_device_reports_its_memory_and_its_card_but_no_power(pynvml: Any, driver: FakeDriver) -> None:
    driver.set(gpu0={"mig": 1, "mig_uuids": "MIG-a,MIG-b", "mig_memory_total": 10 << 30})
    pynvml.nvmlInit()
    part = pynvml.nvmlDeviceGetHandleByUUID("MIG-b")
    assert pynvml.nvmlDeviceIsMigDeviceHandle(part).value == 1
    assert pynvml.nvmlDeviceGetMemoryInfo(part).total == 10 << 30
    assert pynvml.nvmlDeviceGetName(part) == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)) == [1, 1]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetPowerUsage(part)


@pytest.mark.parametrize(
    ("code", "error"), [(NOT_SUPPORTED, "NotSupported"), (NO_PERMISSION, "NoPermission"), (GPU_IS_LOST, "GpuIsLost")]
)
def test_a_function_can_be_refused_for_one_gpu(pynvml: Any, driver: FakeDriver, code: int, error: str) -> None:
    driver.refuse("nvmlDeviceGetPowerUsage", code, gpu=1)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0)) == 300_000
    with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
        pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(1))


def test_a_gpu_is_lost_once_a_file_exists(pynvml: Any, driver: FakeDriver, tmp_path: Path) -> None:
    driver.set(gpu1={"lost_once_file": tmp_path / "lost"})
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetTemperature(gpu, 0) == 55
    (tmp_path / "lost").touch()
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTemperature(gpu, 0)


def test_a_process_finds_the_library_by_its_search_path(fake_library: Path, driver: FakeDriver) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    driver.set(count=3)
    text = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    environment = {**os.environ, **driver.environment(fake_library)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
