"""The GPU that the peaks are measured on, through NVML: its UUID, its product name, its free memory.

What NVML does not report is None and never an error. A GPU in MIG mode is represented by its first MIG device, which
CUDA uses; it never has the card's UUID, memory or plain name, so that its peaks are not attributed to the card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keras_matrix.records.host.procfs import Unread
from keras_matrix.runner.machine.gpus.nvml import open_nvml

# NVML ends the name of a MIG device with " MIG 1g.5gb" or the like (nvml.h: nvmlDeviceGetName).
MIG = " MIG"


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU as its driver reports it, memory in bytes."""

    uuid: str | None = None
    product: str | None = None
    free_memory_bytes: int | None = None


def gpu_identity(visible: str, library: Any = None) -> GpuIdentity:
    """Return NVML's identity of the GPU with this name in `CUDA_VISIBLE_DEVICES`. `library` is `pynvml`."""
    nvml = open_nvml(library)
    handle = nvml if isinstance(nvml, Unread) else nvml.gpu(visible)
    if isinstance(nvml, Unread) or isinstance(handle, Unread):
        return GpuIdentity()
    used = nvml.used_part(handle)
    product = nvml.known_text("nvmlDeviceGetName", handle if used is None else used)
    if used is None:
        return GpuIdentity(product=_of_mig_device(product))
    memory = nvml.value("nvmlDeviceGetMemoryInfo", used)
    return GpuIdentity(
        uuid=nvml.known_text("nvmlDeviceGetUUID", used),
        product=product if nvml.card(used) is used else _of_mig_device(product),
        free_memory_bytes=None if memory is None else int(memory.free),
    )


def _of_mig_device(product: str | None) -> str | None:
    """Return a product name that no data sheet has, even if the driver reports the card's name."""
    return product if product is None or MIG in product else product + MIG
