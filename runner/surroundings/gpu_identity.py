"""Which GPU the peaks are measured on, through NVML: its UUID, its product name, its free memory.

Promise: what NVML does not report is None; nothing of this is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis.surroundings.readings import Unread
from runner.surroundings.nvml import loaded


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU as its driver reports it, memory in bytes."""

    uuid: str | None = None
    product: str | None = None
    free_memory_bytes: int | None = None


def gpu_identity(visible: str, library: Any = None) -> GpuIdentity:
    """Return what NVML reports of the GPU with this index in bus order, or this UUID. `library` is `pynvml`."""
    library = loaded() if library is None else library
    if isinstance(library, Unread):
        return GpuIdentity()
    try:
        library.nvmlInit()
        find = library.nvmlDeviceGetHandleByIndex if visible.isdigit() else library.nvmlDeviceGetHandleByUUID
        handle = find(int(visible) if visible.isdigit() else visible)
    except library.NVMLError:
        return GpuIdentity()

    def read(ask: Callable[[Any], Any]) -> Any:
        try:
            return ask(handle)
        except library.NVMLError:
            return None

    memory = read(library.nvmlDeviceGetMemoryInfo)
    return GpuIdentity(
        uuid=_text(read(library.nvmlDeviceGetUUID)),
        product=_text(read(library.nvmlDeviceGetName)),
        free_memory_bytes=None if memory is None else int(memory.free),
    )


def _text(name: str | bytes | None) -> str | None:
    """Return a name as text: versions of nvidia-ml-py before 11.515 return bytes."""
    return name.decode() if isinstance(name, bytes) else name
