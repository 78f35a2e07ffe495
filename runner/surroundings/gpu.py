"""The GPUs, read through NVML, the driver's own library.

Promise: what NVML does not report is `Unread` with NVML's own words. On a machine without a driver nothing is imported.
Not known here: processes of other containers, which the driver hides; GPUs of other makers.

Written from NVML's documentation (nvml.h; docs.nvidia.com/deploy/nvml-api) and not run on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.surroundings.readings import Driver, Gpu, GpuProcess, Unread
from runner.executors.output import printable
from runner.surroundings.nvml import loaded
from runner.surroundings.processes import container
from runner.surroundings.tree import Tree

MHZ = 1_000_000
# The module's own file, the device that every CUDA program opens, and the device of Windows' driver in WSL.
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's handles in NVML: the one that was asked for, and of a MIG slice the GPU that it is a part of."""

    handle: Any
    whole: Any


def has_driver(tree: Tree) -> bool:
    """Return whether an NVIDIA driver is loaded and, in a container, given to it."""
    return any(tree.at(path).exists() for path in DRIVER_FILES)


def gpus(tree: Tree, library: Any = None) -> tuple[Gpu, ...] | Unread | None:
    """Return every GPU; None without a driver. `library` is `pynvml`, or a test's stand-in for it."""
    return gpus_and_driver(tree, library)[0]


def gpus_and_driver(tree: Tree, library: Any = None) -> tuple[tuple[Gpu, ...] | Unread | None, Driver | None]:
    """Return every GPU as `gpus` does, and the driver if NVML can be opened."""
    if not has_driver(tree):
        return None, None
    library = loaded() if library is None else library
    if isinstance(library, Unread):
        return library, None
    with opened(library) as problem:
        if problem is not None:
            return problem, None
        found = tuple(read_gpu(tree, library, one) for one in handles(library) if not isinstance(one, Unread))
        return found or Unread("the driver reports no GPU"), driver(library)


@contextlib.contextmanager
def opened(library: Any) -> Iterator[Unread | None]:
    """Open NVML for the duration; yield None, or why it cannot be opened, with `absent` if no driver works."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        broken = (library.NVML_ERROR_DRIVER_NOT_LOADED, library.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        yield Unread(f"NVML: {error}", absent=getattr(error, "value", None) in broken)
        return
    try:
        yield None
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def handles(library: Any) -> list[Any | Unread]:
    """Return the handles of all GPUs in bus order; for one that NVML cannot open, such as a lost one, the reason."""
    count = _asked(library, library.nvmlDeviceGetCount)
    numbers = range(0 if isinstance(count, Unread) else count)
    return [_asked(library, library.nvmlDeviceGetHandleByIndex, index) for index in numbers]


def driver(library: Any) -> Driver:
    """Return the driver of an opened NVML."""
    version = _asked(library, library.nvmlSystemGetDriverVersion)
    cuda = _asked(library, library.nvmlSystemGetCudaDriverVersion_v2)
    return Driver(
        version=version if isinstance(version, Unread) else _text(version),
        cuda=cuda if isinstance(cuda, Unread) else (cuda // 1000, cuda % 1000 // 10),
    )


def read_gpu(tree: Tree, library: Any, handle: Any) -> Gpu:
    """Return one GPU of an opened NVML, or one MIG slice by its handle."""
    card, lib = _card(library, handle), library
    index, memory = _asked(lib, lib.nvmlDeviceGetIndex, card.whole), _asked(lib, lib.nvmlDeviceGetMemoryInfo, handle)
    name, uuid = _asked(lib, lib.nvmlDeviceGetName, handle), _asked(lib, lib.nvmlDeviceGetUUID, handle)
    ecc = _asked(lib, lib.nvmlDeviceGetEccMode, card.whole)
    return Gpu(
        index=0 if isinstance(index, Unread) else index,
        name="unknown" if isinstance(name, Unread) else _text(name)[:60],
        clock_hz=_hertz(_asked(lib, lib.nvmlDeviceGetClockInfo, card.whole, lib.NVML_CLOCK_SM)),
        max_clock_hz=_hertz(_asked(lib, lib.nvmlDeviceGetMaxClockInfo, card.whole, lib.NVML_CLOCK_SM)),
        temperature_c=_asked(lib, lib.nvmlDeviceGetTemperature, card.whole, lib.NVML_TEMPERATURE_GPU),
        throttle_mask=_throttle_mask(lib, card.whole),
        persistence=_switch(_asked(lib, lib.nvmlDeviceGetPersistenceMode, card.whole)),
        users=_users(tree, lib, handle),
        uuid="" if isinstance(uuid, Unread) else _text(uuid),
        capability=_capability(_asked(lib, lib.nvmlDeviceGetCudaComputeCapability, card.whole)),
        mig=_mig(lib, card),
        ecc=ecc if isinstance(ecc, Unread) else bool(ecc[0]),
        ecc_errors=_asked(
            lib,
            lib.nvmlDeviceGetTotalEccErrors,
            card.whole,
            lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            lib.NVML_VOLATILE_ECC,
        ),
        memory_bytes=memory if isinstance(memory, Unread) else int(memory.total),
    )


def _card(library: Any, handle: Any) -> Card:
    is_slice = _asked(library, library.nvmlDeviceIsMigDeviceHandle, handle)
    if isinstance(is_slice, Unread) or not getattr(is_slice, "value", is_slice):  # pynvml returns a c_uint
        return Card(handle, handle)
    whole = _asked(library, library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    return Card(handle, handle if isinstance(whole, Unread) else whole)


def _mig(library: Any, card: Card) -> bool | Unread:
    """Return whether a GPU is divided; one that cannot be divided (NVML_ERROR_NOT_SUPPORTED) is not."""
    if card.handle is not card.whole:
        return True
    mode = _asked(library, library.nvmlDeviceGetMigMode, card.whole)
    if isinstance(mode, Unread):
        return False if mode.absent else mode
    return bool(mode[0])


def _users(tree: Tree, library: Any, handle: Any) -> tuple[GpuProcess, ...] | Unread:
    found = _asked(library, library.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(found, Unread):
        return found
    # In a container the driver's process ids are the host's: there /proc would name another process.
    named = container(tree) is None
    users = [GpuProcess(one.pid, _name(tree, one.pid) if named else None, one.usedGpuMemory) for one in found]
    return tuple(sorted(users, key=lambda one: one.pid))


def _name(tree: Tree, pid: int) -> str | None:
    text = tree.text(f"/proc/{pid}/comm")
    return None if isinstance(text, Unread) else printable(text)[:60]


def _throttle_mask(library: Any, handle: Any) -> int | Unread:
    found: int | Unread = _asked(library, library.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if isinstance(found, Unread):
        older: int | Unread = _asked(library, library.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return found if isinstance(older, Unread) else older
    return found


def _asked(library: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or `Unread` with its reason; `absent` if this GPU does not have what was asked for."""
    try:
        return ask(*arguments)
    except library.NVMLError as error:
        return Unread(f"NVML: {error}", absent=getattr(error, "value", None) == library.NVML_ERROR_NOT_SUPPORTED)


def _text(found: Any) -> str:
    return printable(found.decode("utf-8", errors="replace") if isinstance(found, bytes) else str(found))


def _hertz(found: int | Unread) -> int | Unread:
    return found if isinstance(found, Unread) else found * MHZ


def _switch(found: int | Unread) -> bool | Unread:
    return found if isinstance(found, Unread) else bool(found)


def _capability(found: Sequence[int] | Unread) -> tuple[int, int] | Unread:
    return found if isinstance(found, Unread) else (found[0], found[1])
