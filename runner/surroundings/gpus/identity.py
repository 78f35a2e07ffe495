"""Which GPU the peaks are measured on, through NVML: its UUID, its product name, its free memory.

Promise: what NVML does not report is None; nothing of this is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analysis.surroundings.readings import Unread
from runner.surroundings.gpus.nvml import open_nvml


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU as its driver reports it, memory in bytes."""

    uuid: str | None = None
    product: str | None = None
    free_memory_bytes: int | None = None


def gpu_identity(visible: str, library: Any = None) -> GpuIdentity:
    """Return what NVML reports of the GPU that `CUDA_VISIBLE_DEVICES` names so. `library` is `pynvml`."""
    nvml = open_nvml(library)
    handle = nvml if isinstance(nvml, Unread) else nvml.gpu(visible)
    if isinstance(nvml, Unread) or isinstance(handle, Unread):
        return GpuIdentity()
    uuid, product = nvml.text("nvmlDeviceGetUUID", handle), nvml.text("nvmlDeviceGetName", handle)
    memory = nvml.value("nvmlDeviceGetMemoryInfo", handle)
    return GpuIdentity(
        uuid=uuid if isinstance(uuid, str) else None,
        product=product if isinstance(product, str) else None,
        free_memory_bytes=None if memory is None else int(memory.free),
    )
