"""NVML, the driver's library: opening it, calls with errors as values, and the identity of the GPUs.

Every module that reads GPUs uses this one. `pynvml` is imported only when NVML is opened, and an error of NVML is never
raised: it is returned as `Unread`, with NVML's message.

NVML is opened at each use and never shut down. It counts its openings, a handle is valid only while it is open, and the
driver closes it when the process ends (nvml.h: nvmlInit_v2, nvmlShutdown).

NVML neither uses a GPU nor initialises CUDA. It does not read `CUDA_VISIBLE_DEVICES`, so that the list does not depend
on what the caller may use. A GPU that is divided by MIG is listed as one GPU, without its slices.

What NVML does not report is None and never an error. A GPU in MIG mode is represented by its first MIG device, which
CUDA uses; it never has the card's UUID, memory or plain name, so that its peaks are not attributed to the card.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.text import printable

# nvml.h, nvmlReturn_t.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_MISMATCH = 9, 18
GPU_IS_LOST, RESET_REQUIRED = 15, 16
# A GPU has at most seven MIG devices (MIG User Guide, "Partitioning").
MOST_MIG_DEVICES = 7
# NVML ends the name of a MIG device with " MIG 1g.5gb" or the like (nvml.h: nvmlDeviceGetName).
MIG = " MIG"


@dataclass(frozen=True, slots=True)
class GpuLost(Unread):
    """NVML reports that the GPU is lost or needs a reset."""


@dataclass(frozen=True, slots=True)
class NotPermitted(Unread):
    """This user may not read it."""


@dataclass(frozen=True, slots=True)
class Nvml:
    """NVML, opened. `library` is `pynvml`, or a fake of it in tests."""

    library: Any

    def ask(self, name: str, *arguments: Any, absent: Collection[int] = (NOT_SUPPORTED,)) -> Any | Unread:
        """Return a function's result or error; with the codes `absent` there is nothing to read."""
        try:
            return getattr(self.library, name)(*arguments)
        except self.library.NVMLError as error:
            return _unread(error, absent)

    def known_text(self, name: str, handle: Any) -> str | None:
        """Return a text about a GPU, None for an error."""
        answer = self.text(name, handle)
        return None if isinstance(answer, Unread) else answer

    def value(self, name: str, *arguments: Any) -> Any:
        """Return a function's result, None for an error."""
        answer = self.ask(name, *arguments)
        return None if isinstance(answer, Unread) else answer

    def gpus(self) -> list[Any | Unread]:
        """Return the handles of all GPUs in bus order; for one that cannot be opened (a lost one) the reason."""
        numbers = range(self.value("nvmlDeviceGetCount") or 0)
        return [self.ask("nvmlDeviceGetHandleByIndex", index) for index in numbers]

    def gpu(self, name: str) -> Any | Unread:
        """Return the handle of a GPU by its name in `CUDA_VISIBLE_DEVICES`; `absent` if it does not exist.

        The name is its index in bus order, its UUID or a unique prefix of it, or the UUID of a MIG device.
        """
        is_index = name.isascii() and name.isdigit()
        function_name = "nvmlDeviceGetHandleByIndex" if is_index else "nvmlDeviceGetHandleByUUID"
        handle = self.ask(function_name, int(name) if is_index else name, absent=(INVALID_ARGUMENT, NOT_FOUND))
        if not isinstance(handle, Unread) or not handle.absent:
            return handle
        handles = self.gpus()
        fitting_handles = [
            known_handle for known_handle in handles if name.startswith("GPU-") and self._has_uuid(known_handle, name)
        ]
        if len(fitting_handles) == 1:
            return fitting_handles[0]
        return Unread(f"the driver reports {len(handles)} GPU{'' if len(handles) == 1 else 's'}", absent=True)

    def used_part(self, handle: Any) -> Any | None:
        """Return the part that CUDA uses: in MIG mode the first MIG device, or None without one; else the handle."""
        if self.card(handle) is not handle or not (self.value("nvmlDeviceGetMigMode", handle) or (0, 0))[0]:
            return handle
        mig_handles = (
            self.value("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(MOST_MIG_DEVICES)
        )
        return next((mig_handle for mig_handle in mig_handles if mig_handle is not None), None)

    def card(self, handle: Any) -> Any:
        """Return the handle of a MIG device's GPU; any other handle unchanged."""
        is_part = self.value("nvmlDeviceIsMigDeviceHandle", handle)
        if not getattr(is_part, "value", is_part):  # pynvml returns a c_uint
            return handle
        return self.value("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle

    def text(self, name: str, *arguments: Any) -> str | Unread:
        """Return a text; versions of nvidia-ml-py before 11.515 return bytes."""
        answer = self.ask(name, *arguments)
        if isinstance(answer, Unread):
            return answer
        return printable(answer.decode("utf-8", errors="replace") if isinstance(answer, bytes) else str(answer))

    def _has_uuid(self, handle: Any | Unread, prefix: str) -> bool:
        uuid = handle if isinstance(handle, Unread) else self.text("nvmlDeviceGetUUID", handle)
        return isinstance(uuid, str) and uuid.lower().startswith(prefix.lower())


def loaded() -> Any | Unread:
    """Import and return the module `pynvml`."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return Unread("nvidia-ml-py is not installed")


def open_nvml(library: Any = None) -> Nvml | Unread:
    """Return NVML, opened, or why it cannot be opened: `absent` without a working driver."""
    library = loaded() if library is None else library
    if isinstance(library, Unread):
        return library
    nvml = Nvml(library)
    opened = nvml.ask("nvmlInit", absent=(DRIVER_NOT_LOADED, LIBRARY_MISMATCH))
    return opened if isinstance(opened, Unread) else nvml


def _unread(error: Exception, absent: Collection[int]) -> Unread:
    code, why = getattr(error, "value", None), f"NVML: {error}"
    if code in (GPU_IS_LOST, RESET_REQUIRED):
        return GpuLost(why)
    return NotPermitted(why) if code == NO_PERMISSION else Unread(why, absent=code in absent)


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
    uuids = [handle if isinstance(handle, Unread) else nvml.text("nvmlDeviceGetUUID", handle) for handle in handles]
    models = [handle if isinstance(handle, Unread) else nvml.text("nvmlDeviceGetName", handle) for handle in handles]
    for answer in (*uuids, *models, driver):
        if isinstance(answer, Unread):
            return answer
    return PresentGpus(tuple(map(str, uuids)), tuple(map(str, models)), str(driver))


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
    used_part = nvml.used_part(handle)
    product = nvml.known_text("nvmlDeviceGetName", handle if used_part is None else used_part)
    if used_part is None:
        return GpuIdentity(product=_of_mig_device(product))
    memory = nvml.value("nvmlDeviceGetMemoryInfo", used_part)
    return GpuIdentity(
        uuid=nvml.known_text("nvmlDeviceGetUUID", used_part),
        product=product if nvml.card(used_part) is used_part else _of_mig_device(product),
        free_memory_bytes=None if memory is None else int(memory.free),
    )


def _of_mig_device(product: str | None) -> str | None:
    """Return a product name that no data sheet has, even if the driver reports the card's name."""
    return product if product is None or MIG in product else product + MIG
