"""The NVML module: finding a GPU by its name, and errors as values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from keras_matrix import runner
from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import GpuLost, NotPermitted, Nvml, open_nvml
from tests.fakes.pynvml import (
    DRIVER_NOT_LOADED,
    LOST,
    MISMATCH,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET,
    FakeGpu,
    FakePynvml,
)

A, B = FakeGpu(uuid="GPU-89aa-1"), FakeGpu(uuid="GPU-89bb-2")
SLICE = FakeGpu(uuid="MIG-c", slice_of=B)


def opened(*gpus: FakeGpu) -> Nvml:
    found = open_nvml(FakePynvml(*gpus))
    assert isinstance(found, Nvml)
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [("0", A), ("1", B), ("GPU-89aa-1", A), ("GPU-89b", B), ("GPU-89BB", B), ("MIG-c", SLICE)],
)
def test_gpu_is_found_by_index_uuid_uuid_prefix_or_mig_uuid(name: str, expected: FakeGpu) -> None:
    assert opened(A, B, SLICE).gpu(name) is expected


@pytest.mark.parametrize("name", ["2", "GPU-89", "GPU-7", "MIG-x", "", "-1", "\u0661"])
def test_a_name_that_fits_no_gpu_or_several_is_absent(name: str) -> None:
    assert opened(A, B).gpu(name) == Unread("the driver reports 2 GPUs", absent=True)


@pytest.mark.parametrize(("code", "words"), [(LOST, "NVML: GPU is lost"), (RESET, "NVML: GPU requires restart")])
def test_a_gpu_that_is_lost_or_needs_a_reset_is_not_absent(code: int, words: str) -> None:
    lost = FakeGpu(errors={"nvmlDeviceGetHandleByIndex": code})
    nvml = opened(lost, B)
    assert nvml.gpus() == [GpuLost(words), B]
    assert nvml.gpu("0") == GpuLost(words)


def test_the_card_of_a_mig_device_is_the_gpu_it_is_a_part_of() -> None:
    nvml = opened(A, B, SLICE)
    assert (nvml.card(SLICE), nvml.card(A)) == (B, A)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (LOST, GpuLost("NVML: GPU is lost")),
        (RESET, GpuLost("NVML: GPU requires restart")),
        (NO_PERMISSION, NotPermitted("NVML: Insufficient Permissions")),
        (NOT_SUPPORTED, Unread("NVML: Not Supported", absent=True)),
    ],
)
def test_an_error_of_nvml_is_a_value(code: int, expected: Unread) -> None:
    gpu = FakeGpu(errors={"nvmlDeviceGetName": code})
    nvml = opened(gpu)
    assert nvml.ask("nvmlDeviceGetName", gpu) == nvml.text("nvmlDeviceGetName", gpu) == expected
    assert nvml.value("nvmlDeviceGetName", gpu) is None


@pytest.mark.parametrize(("code", "absent"), [(DRIVER_NOT_LOADED, True), (MISMATCH, True), (NOT_SUPPORTED, False)])
def test_a_driver_that_does_not_work_is_absent(code: int, absent: bool) -> None:
    found = open_nvml(FakePynvml(A, init_error=code))
    assert isinstance(found, Unread)
    assert found.absent is absent


def test_without_nvidia_ml_py_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvml() == Unread("nvidia-ml-py is not installed")


@pytest.mark.parametrize("text", ["NVMLError", "nvmlInit", '"pynvml"', "nvmlDeviceGetHandleBy"])
def test_one_module_loads_and_opens_nvml_finds_gpus_and_handles_its_errors(text: str) -> None:
    root = Path(runner.__file__).parent
    found = [path.relative_to(root).as_posix() for path in root.rglob("*.py") if text in path.read_text()]
    assert found == ["machine/gpus/nvml.py"]
