"""The GPUs that the driver lists, from a fake of `pynvml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine import machine
from keras_matrix.runner.machine.gpus import nvml as module
from keras_matrix.runner.machine.gpus.nvml import PresentGpus, present_gpus

ROOT = Path(__file__).parents[4]
FOUND = PresentGpus(("GPU-aa", "GPU-bb"), ("NVIDIA H100", "NVIDIA T4"), "580.95.05")


class Refusal(Exception):
    """NVML's error."""


def library(**changes: Any) -> Any:
    offered = {
        "NVMLError": Refusal,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: FOUND.uuids[handle],
        "nvmlDeviceGetName": lambda handle: FOUND.models[handle],
        "nvmlSystemGetDriverVersion": lambda: FOUND.driver,
    }
    return SimpleNamespace(**offered | changes)


def test_every_gpu_is_listed_with_its_uuid_and_model() -> None:
    assert present_gpus(library()) == FOUND


def test_a_driver_that_does_not_answer_is_unread_with_its_message() -> None:
    def refuse(*arguments: Any) -> Any:
        raise Refusal("Driver Not Loaded")

    assert present_gpus(library(nvmlInit=refuse)) == Unread("NVML: Driver Not Loaded")
    assert present_gpus(library(nvmlDeviceGetUUID=refuse)) == Unread("NVML: Driver Not Loaded")
    assert present_gpus(Unread("nvidia-ml-py is not installed")) == Unread("nvidia-ml-py is not installed")


def test_the_machine_has_its_gpus_from_nvml_where_nvidia_smi_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(module, "loaded", library)
    found = machine.detect()
    assert (found.gpus, found.gpu_driver) == (["NVIDIA H100", "NVIDIA T4"], "580.95.05")
    monkeypatch.setattr(module, "loaded", lambda: Unread("nvidia-ml-py is not installed"))
    found = machine.detect()
    assert (found.gpus, found.gpu_driver) == ([], None)


def test_nvml_is_a_dependency_of_the_host_side_and_of_every_image_that_measures() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [one for one in project["dependencies"] if one.startswith("nvidia-ml-py")] == ["nvidia-ml-py>=13,<14"]
    locks = [path.stem for path in (ROOT / "locks").glob("*.txt") if "\nnvidia-ml-py==" in path.read_text()]
    assert {"host", "cpu", "dashboard", "tf-gpu", "jax-gpu", "torch-gpu", "tf-cpu", "jax-cpu", "torch-cpu"} <= {*locks}
