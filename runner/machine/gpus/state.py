"""The state of the GPUs and their driver, as NVML reports it.

What NVML does not report is `Unread` with NVML's message. On a machine without a driver nothing is imported. Not
covered: processes of other containers, which the driver hides; GPUs of other vendors.

Written from NVML's documentation (nvml.h; docs.nvidia.com/deploy/nvml-api) and not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from keras_matrix.analysis.surroundings.readings import MHZ, Driver, Gpu, GpuProcess
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.host.system import container_engine
from keras_matrix.records.text import printable
from keras_matrix.runner.machine.gpus.nvml import Nvml, open_nvml

T = TypeVar("T")
# The module's own file, the device that every CUDA program opens, and the device of Windows' driver in WSL.
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def has_driver(tree: ProcTree) -> bool:
    """Return whether an NVIDIA driver is loaded and, in a container, given to it."""
    return any(tree.at(path).exists() for path in DRIVER_FILES)


def gpus_and_driver(tree: ProcTree, library: Any = None) -> tuple[tuple[Gpu, ...] | Unread | None, Driver | None]:
    """Return every GPU, None without a driver, and the driver if NVML can be opened.

    `library` is `pynvml`, or a fake of it in tests.
    """
    if not has_driver(tree):
        return None, None
    nvml = open_nvml(library)
    if isinstance(nvml, Unread):
        return nvml, None
    found = tuple(read_gpu(tree, nvml, one) for one in nvml.gpus() if not isinstance(one, Unread))
    return found or Unread("the driver reports no GPU"), driver(nvml)


def driver(nvml: Nvml) -> Driver:
    """Return the driver."""
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
    return Driver(
        version=nvml.text("nvmlSystemGetDriverVersion"),
        cuda=_converted(cuda, lambda number: (number // 1000, number % 1000 // 10)),
    )


def read_gpu(tree: ProcTree, nvml: Nvml, handle: Any) -> Gpu:
    """Return one GPU, or one MIG slice by its handle."""
    card, ask, lib = nvml.card(handle), nvml.ask, nvml.library
    uncorrected = (lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC)
    return Gpu(
        index=nvml.value("nvmlDeviceGetIndex", card) or 0,
        name=(nvml.known_text("nvmlDeviceGetName", handle) or "unknown")[:60],
        clock_hz=_converted(ask("nvmlDeviceGetClockInfo", card, lib.NVML_CLOCK_SM), lambda clock: clock * MHZ),
        max_clock_hz=_converted(ask("nvmlDeviceGetMaxClockInfo", card, lib.NVML_CLOCK_SM), lambda clock: clock * MHZ),
        temperature_c=ask("nvmlDeviceGetTemperature", card, lib.NVML_TEMPERATURE_GPU),
        throttle_mask=_throttle_mask(nvml, card),
        persistence=_converted(ask("nvmlDeviceGetPersistenceMode", card), bool),
        users=_users(tree, nvml, handle),
        uuid=nvml.known_text("nvmlDeviceGetUUID", handle) or "",
        capability=_converted(ask("nvmlDeviceGetCudaComputeCapability", card), lambda found: (found[0], found[1])),
        mig=_mig(nvml, handle, card),
        ecc=_converted(ask("nvmlDeviceGetEccMode", card), lambda modes: bool(modes[0])),
        ecc_errors=ask("nvmlDeviceGetTotalEccErrors", card, *uncorrected),
        memory_bytes=_converted(ask("nvmlDeviceGetMemoryInfo", handle), lambda memory: int(memory.total)),
        compute_mode=ask("nvmlDeviceGetComputeMode", card),
    )


def _mig(nvml: Nvml, handle: Any, card: Any) -> bool | Unread:
    """Return whether a GPU is divided; one that cannot be divided (NVML_ERROR_NOT_SUPPORTED) is not."""
    if handle is not card:
        return True
    mode = nvml.ask("nvmlDeviceGetMigMode", card)
    if isinstance(mode, Unread):
        return False if mode.absent else mode
    return bool(mode[0])


def _users(tree: ProcTree, nvml: Nvml, handle: Any) -> tuple[GpuProcess, ...] | Unread:
    found = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if isinstance(found, Unread):
        return found
    # In a container the driver reports the host's pids, for which /proc would name other processes.
    named = container_engine(tree) is None
    users = [GpuProcess(one.pid, _name(tree, one.pid) if named else None, one.usedGpuMemory) for one in found]
    return tuple(sorted(users, key=lambda one: one.pid))


def _name(tree: ProcTree, pid: int) -> str | None:
    text = tree.text(f"/proc/{pid}/comm")
    return None if isinstance(text, Unread) else printable(text)[:60]


def _throttle_mask(nvml: Nvml, card: Any) -> int | Unread:
    """Return the reasons for throttling; drivers before 535 have the function under its old name."""
    found: int | Unread = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", card)
    older = nvml.value("nvmlDeviceGetCurrentClocksThrottleReasons", card) if isinstance(found, Unread) else None
    return found if older is None else older


def _converted(found: Any | Unread, convert: Callable[[Any], T]) -> T | Unread:
    """Return a converted value, or why it could not be read."""
    return found if isinstance(found, Unread) else convert(found)
