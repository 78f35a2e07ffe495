"""What NVML reports of GPUs, read from a fake of its Python module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.surroundings.readings import Gpu, GpuProcess
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.runner.machine.gpus.nvml import NotPermitted
from keras_matrix.runner.machine.gpus.readings import DRIVER_FILES, gpus_and_driver
from tests.fakes.machine import write
from tests.fakes.pynvml import NO_PERMISSION, NOT_SUPPORTED, FakeGpu, FakePynvml, used_by

FUNCTION_NOT_FOUND = 6
READ_FUNCTIONS = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeMode",
)


def read_gpus(tree: ProcTree, library: Any) -> tuple[Gpu, ...] | Unread | None:
    return gpus_and_driver(tree, library)[0]


def with_driver(tmp_path: Path, path: str = DRIVER_FILES[0]) -> ProcTree:
    write(tmp_path, path, "")
    return ProcTree(tmp_path)


def test_without_a_driver_nothing_is_read(tmp_path: Path) -> None:
    library = FakePynvml(FakeGpu(), init_error=NO_PERMISSION)
    assert read_gpus(ProcTree(tmp_path), library) is None


@pytest.mark.parametrize("path", DRIVER_FILES)
def test_a_driver_is_recognised_by_each_of_its_files(tmp_path: Path, path: str) -> None:
    assert isinstance(read_gpus(with_driver(tmp_path, path), FakePynvml(FakeGpu())), tuple)


def test_every_gpu_is_read_in_full(tmp_path: Path) -> None:
    write(tmp_path, "/proc/41/comm", "python3\n")
    second = FakeGpu(uuid="GPU-b", persistence=0, throttle_mask=0x24, users=[used_by(41), used_by(7, None)])
    library = FakePynvml(FakeGpu(uuid="GPU-a"), second)
    same = {"capability": (8, 0), "mig": False, "ecc": True, "ecc_errors": 0, "memory_bytes": 80 << 30}
    same |= {"compute_mode": 0}
    name = "NVIDIA A100-SXM4-80GB"
    assert read_gpus(with_driver(tmp_path), library) == (
        Gpu(0, name, 210_000_000, 1_410_000_000, 31, 1, True, (), "GPU-a", **same),  # type: ignore[arg-type]
        Gpu(
            *(1, name, 210_000_000, 1_410_000_000, 31, 0x24, False),  # type: ignore[arg-type]
            users=(GpuProcess(7), GpuProcess(41, "python3", 512 << 20)),
            uuid="GPU-b",
            **same,  # type: ignore[arg-type]
        ),
    )


def test_processes_are_not_named_in_a_container_whose_process_ids_differ(tmp_path: Path) -> None:
    write(tmp_path, "/.dockerenv", "")
    write(tmp_path, "/proc/41/comm", "another\n")
    found = read_gpus(with_driver(tmp_path), FakePynvml(FakeGpu(users=[used_by(41)])))
    assert isinstance(found, tuple)
    assert found[0].users == (GpuProcess(41, None, 512 << 20),)


def test_value_refused_by_nvml_is_unread_with_its_message(tmp_path: Path) -> None:
    refused = FakeGpu(errors=dict.fromkeys(READ_FUNCTIONS, NO_PERMISSION))
    found = read_gpus(with_driver(tmp_path), FakePynvml(refused))
    unread = NotPermitted("NVML: Insufficient Permissions")
    assert found == (Gpu(0, refused.name, *[unread] * 6, refused.uuid, *[unread] * 6),)  # type: ignore[arg-type]


def test_a_gpu_that_cannot_be_divided_is_not_divided(tmp_path: Path) -> None:
    found = read_gpus(with_driver(tmp_path), FakePynvml(FakeGpu(errors={"nvmlDeviceGetMigMode": NOT_SUPPORTED})))
    assert isinstance(found, tuple)
    assert found[0].mig is False


def test_clock_reasons_of_drivers_before_535_are_read_by_their_old_name(tmp_path: Path) -> None:
    old = FakeGpu(throttle_mask=4, errors={"nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND})
    found = read_gpus(with_driver(tmp_path), FakePynvml(old))
    assert isinstance(found, tuple)
    assert found[0].throttle_mask == 4


@pytest.mark.parametrize("library", [FakePynvml(), FakePynvml(FakeGpu(), init_error=NO_PERMISSION)])
def test_a_driver_that_shows_no_gpu_is_unread(tmp_path: Path, library: FakePynvml) -> None:
    assert isinstance(read_gpus(with_driver(tmp_path), library), Unread)
