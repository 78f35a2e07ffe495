"""One GPU through NVML, the driver's own library: read at the boundaries of epochs, and held to one clock.

Promise: a reading takes no part of the GPU, is taken while it rests, and is None where the driver does not tell. NVML
is imported only for a GPU cell; where it is missing nothing is read. Counters of the driver (energy, time held back by
heat or power) are read at both ends of an epoch, since what holds the clock back ends with the work: the reasons that
are active at a boundary tell less.

Written from NVML's documentation (nvml.h; docs.nvidia.com/deploy/nvml-api) and not run on a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.surroundings.gpu import MHZ, reasons_in_words
from analysis.surroundings.readings import Unread
from records.schema import GpuEpochs
from records.settings import Settings

MILLI = 1e-3
PERCENT = 0.01
NANO = 1e-9


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver says at one moment; energy and throttled times count from when it was loaded."""

    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_mask: int | None = None
    energy_j: float | None = None
    thermal_throttled_s: float | None = None
    power_throttled_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What is in use of a GPU at one moment; the share of time with work is that of the driver's last period."""

    memory_used_bytes: int | None = None
    process_memory_bytes: int | None = None
    utilisation_share: float | None = None
    power_w: float | None = None


class Nvml:
    """One GPU. `library` is `pynvml`, or what stands for it in a test."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def read(self) -> GpuReading:
        """Return what the driver says now."""
        lib = self._library
        return GpuReading(
            sm_clock_hz=self._told(lib.nvmlDeviceGetClockInfo, lib.NVML_CLOCK_SM, scale=MHZ),
            memory_clock_hz=self._told(lib.nvmlDeviceGetClockInfo, lib.NVML_CLOCK_MEM, scale=MHZ),
            temperature_c=self._told(lib.nvmlDeviceGetTemperature, lib.NVML_TEMPERATURE_GPU, scale=1.0),
            power_w=self._told(lib.nvmlDeviceGetPowerUsage, scale=MILLI),
            throttle_mask=self._told(lib.nvmlDeviceGetCurrentClocksEventReasons),
            energy_j=self.energy_j(),
            thermal_throttled_s=self._violation(lib.NVML_PERF_POLICY_THERMAL),
            power_throttled_s=self._violation(lib.NVML_PERF_POLICY_POWER),
        )

    def use(self, pids: Collection[int]) -> GpuUse:
        """Return what is in use now, by whomever and by these processes."""
        lib = self._library
        memory, rates = self._told(lib.nvmlDeviceGetMemoryInfo), self._told(lib.nvmlDeviceGetUtilizationRates)
        return GpuUse(
            memory_used_bytes=None if memory is None else int(memory.used),
            process_memory_bytes=self._used_by(pids),
            utilisation_share=None if rates is None else rates.gpu * PERCENT,
            power_w=self._told(lib.nvmlDeviceGetPowerUsage, scale=MILLI),
        )

    def energy_j(self) -> float | None:
        """Return the energy used since the driver was loaded."""
        found: float | None = self._told(self._library.nvmlDeviceGetTotalEnergyConsumption, scale=MILLI)
        return found

    def lock(self) -> str | None:
        """Hold the clock to the one the GPU is rated for, which it keeps under any load; return why it cannot be."""
        rated = self._library.NVML_CLOCK_LIMIT_ID_TDP
        try:
            self._library.nvmlDeviceSetGpuLockedClocks(self._handle, rated, rated)
        except self._library.NVMLError as error:
            return str(error)
        return None

    def unlock(self) -> None:
        """Give the clock back to the driver; where it will not have it there is nothing to be done."""
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlDeviceResetGpuLockedClocks(self._handle)

    def _told(self, ask: Callable[..., Any], *arguments: Any, scale: float | None = None) -> Any:
        try:
            found = ask(self._handle, *arguments)
            return found if scale is None else found * scale
        except self._library.NVMLError:
            return None

    def _used_by(self, pids: Collection[int]) -> int | None:
        """Return the memory of these processes; None where the driver lists none of them.

        It knows processes by the machine's numbers, which in a container are others.
        """
        listed = self._told(self._library.nvmlDeviceGetComputeRunningProcesses) or []
        ours = [one.usedGpuMemory for one in listed if one.pid in pids]
        known = [int(size) for size in ours if size is not None]
        return sum(known) if known and len(known) == len(ours) else None

    def _violation(self, policy: int) -> float | None:
        try:
            return float(self._library.nvmlDeviceGetViolationStatus(self._handle, policy).violationTime) * NANO
        except self._library.NVMLError:
            return None


def loaded() -> Any | Unread:
    """Return the module `pynvml`, imported only now."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return Unread("nvidia-ml-py is not installed")


def opened(visible: str, library: Any = None) -> Nvml | Unread:
    """Return the GPU that `CUDA_VISIBLE_DEVICES` names by its index in the order of the bus, or by its UUID."""
    library = loaded() if library is None else library
    if isinstance(library, Unread):
        return library
    try:
        library.nvmlInit()
        if visible.isdigit():
            return Nvml(library, library.nvmlDeviceGetHandleByIndex(int(visible)))
        return Nvml(library, library.nvmlDeviceGetHandleByUUID(visible))
    except library.NVMLError as error:
        return Unread(f"NVML: {error}")


class HeldClocks:
    """The clocks of the GPU that cells run on, held for those that ask for it and given back before any other runs."""

    def __init__(self, open_gpu: Callable[[], Nvml | Unread]) -> None:
        self._open = open_gpu
        self._held: Nvml | None = None

    def suit(self, settings: Settings) -> str | None:
        """Lock or release as this cell asks; return why that is refused."""
        if settings.clocks != "locked":
            self.release()
            return None
        if self._held is not None:
            return None
        gpu = self._open()
        refused = gpu.why if isinstance(gpu, Unread) else gpu.lock()
        if refused is None and isinstance(gpu, Nvml):
            self._held = gpu
            return None
        return (
            f"clocks: locked: the GPU's clocks cannot be held here: {refused}; it takes root (or the capability "
            "SYS_ADMIN) and a GPU from Volta on; lock them yourself with nvidia-smi -lgc and set clocks to free"
        )

    def release(self) -> None:
        """Give the clocks back."""
        held, self._held = self._held, None
        if held is not None:
            held.unlock()


def over_epochs(ends: Sequence[tuple[GpuReading, GpuReading]]) -> GpuEpochs | None:
    """Return what a record says of readings at the begin and the end of each kept epoch; None for none. Pure."""
    if not ends:
        return None
    boundaries = [ends[0][0], *(after for _, after in ends)]
    return GpuEpochs(
        sm_clocks_hz=[one.sm_clock_hz for one in boundaries],
        memory_clocks_hz=[one.memory_clock_hz for one in boundaries],
        temperatures_c=[one.temperature_c for one in boundaries],
        powers_w=[one.power_w for one in boundaries],
        throttle_reasons=[
            None if one.throttle_mask is None else ", ".join(reasons_in_words(one.throttle_mask)) for one in boundaries
        ],
        epoch_energies_j=[_moved(before.energy_j, after.energy_j) for before, after in ends],
        thermal_throttled_times_s=[_moved(b.thermal_throttled_s, a.thermal_throttled_s) for b, a in ends],
        power_throttled_times_s=[_moved(b.power_throttled_s, a.power_throttled_s) for b, a in ends],
    )


def _moved(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before
