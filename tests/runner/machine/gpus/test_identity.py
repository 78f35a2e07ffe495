"""The GPU that peaks are measured on, through NVML; what it does not report is not an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import GpuIdentity, gpu_identity

UUID = "GPU-8a6f2d3e-0000-0000-0000-000000000001"


class NVMLError(Exception):
    pass


class Library:
    """Two GPUs; `lacking` names the functions that fail."""

    NVMLError = NVMLError

    def __init__(self, *lacking: str) -> None:
        self._lacking = lacking

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            if name in self._lacking:
                raise NVMLError(name)
            return {
                "nvmlInit": None,
                "nvmlDeviceGetHandleByIndex": "handle",
                "nvmlDeviceGetHandleByUUID": "handle",
                "nvmlDeviceGetUUID": UUID,
                "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(free=79 << 30),
                "nvmlDeviceIsMigDeviceHandle": 0,
                "nvmlDeviceGetMigMode": [0, 0],
            }[name]

        return ask


@pytest.mark.parametrize("visible", ["0", UUID])
def test_a_gpu_is_identified_by_index_or_uuid(visible: str) -> None:
    expected = GpuIdentity(UUID, "NVIDIA H100 80GB HBM3", 79 << 30)
    assert gpu_identity(visible, Library()) == expected


@pytest.mark.parametrize("lacking", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_a_gpu_that_nvml_does_not_find_has_no_identity(lacking: str) -> None:
    assert gpu_identity("0", Library(lacking)) == GpuIdentity()


def test_what_nvml_does_not_report_is_none() -> None:
    library = Library("nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo")
    assert gpu_identity("0", library) == GpuIdentity(None, "NVIDIA H100 80GB HBM3", None)


def test_without_nvidia_ml_py_there_is_no_identity() -> None:
    assert gpu_identity("0", Unread("nvidia-ml-py is not installed")) == GpuIdentity()
