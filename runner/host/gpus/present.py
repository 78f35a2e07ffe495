"""The GPUs that the driver lists here, on a machine or in a container: UUIDs and models, in the order of the bus.

Promise: asks NVML, which neither uses a GPU nor initialises CUDA. NVML does not read `CUDA_VISIBLE_DEVICES`, so the
list is the same whatever the caller may use. Of a GPU that is divided by MIG the whole GPU is listed, not its slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.host.gpus.nvml import open_nvml


@dataclass(frozen=True, slots=True)
class PresentGpus:
    """The GPUs by their NVML index, which `nvidia-smi` shows too, and the version of the driver."""

    uuids: tuple[str, ...]
    models: tuple[str, ...] = ()
    driver: str | None = None


def present_gpus(library: Any = None) -> PresentGpus | Unread:
    """Return the GPUs that the driver lists; `library` is `pynvml`, or what stands for it in a test."""
    nvml = open_nvml(library)
    if isinstance(nvml, Unread):
        return nvml
    count = nvml.ask("nvmlDeviceGetCount")
    handles = [count] if isinstance(count, Unread) else nvml.gpus()
    driver = nvml.text("nvmlSystemGetDriverVersion")
    uuids = [one if isinstance(one, Unread) else nvml.text("nvmlDeviceGetUUID", one) for one in handles]
    models = [one if isinstance(one, Unread) else nvml.text("nvmlDeviceGetName", one) for one in handles]
    for found in (*uuids, *models, driver):
        if isinstance(found, Unread):
            return found
    return PresentGpus(tuple(map(str, uuids)), tuple(map(str, models)), str(driver))
