"""The GPUs that the driver lists on this machine or in this container: UUIDs and models, in the order of the bus.

NVML neither uses a GPU nor initialises CUDA. It does not read `CUDA_VISIBLE_DEVICES`, so that the list does not depend
on what the caller may use. A GPU that is divided by MIG is listed as one GPU, without its slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import open_nvml


@dataclass(frozen=True, slots=True)
class PresentGpus:
    """The GPUs by their NVML index, which `nvidia-smi` also shows, and the version of the driver."""

    uuids: tuple[str, ...]
    models: tuple[str, ...] = ()
    driver: str | None = None


def present_gpus(library: Any = None) -> PresentGpus | Unread:
    """Return the GPUs that the driver lists; `library` is `pynvml`, or a fake of it in tests."""
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
