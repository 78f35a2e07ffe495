"""GPUs through NVML, the driver's own library: their state, readings at the boundaries of epochs, and locked clocks.

A reading uses no part of the GPU, is taken while the cell rests, and is None if the driver has no value. Counters of
the driver (energy, time throttled by heat or power) are read at both ends of an epoch, since throttling ends with the
work: the reasons that are active at a boundary say less.

Power is energy over time if the driver counts energy. `nvmlDeviceGetPowerUsage` is an average over one second on
Ampere and later (except GA100), so that samples are `NVML_FI_DEV_POWER_INSTANT` if the driver provides it. A MIG device
has its own memory and processes; power, energy, clocks, temperature and utilisation are those of the entire card.

Written from NVML's documentation (nvml.h; docs.nvidia.com/deploy/nvml-api) and tested with a fake library
(tests/gpu/fake_nvml.c), not on a GPU.

The GPUs of one cell: each is read at both ends of every measured epoch.

The values of a GPU that cannot be read are None, with the reason; a GPU that NVML reports lost is evidence.

What NVML does not report of the state is `Unread` with NVML's message. On a machine without a driver nothing is
imported. Not covered: processes of other containers, which the driver hides; GPUs of other vendors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from keras_matrix.analysis.surroundings.readings import MHZ, Driver, Gpu, GpuProcess, reasons_in_words
from keras_matrix.records.host.procfs import ProcTree, Unread
from keras_matrix.records.host.system import container_engine
from keras_matrix.records.schema import GpuEpochs
from keras_matrix.records.text import printable
from keras_matrix.runner.machine.gpus.nvml import GpuLost, NotPermitted, Nvml, open_nvml
from keras_matrix.runner.machine.surroundings.counters import moved, total

MILLI = 1e-3
PERCENT = 0.01
NANO = 1e-9
# Where power samples come from: NVML_FI_DEV_POWER_INSTANT, or nvmlDeviceGetPowerUsage.
INSTANT, POWER_USAGE = "instant", "power_usage"
T = TypeVar("T")
# The module's own file, the device that every CUDA program opens, and the device of Windows' driver in WSL.
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


class ReadableGpu:
    """One GPU. `card` is the entire GPU: another handle than `handle` if that is a MIG device.

    `lost` is NVML's message when the GPU was lost, `not_permitted` the functions that this user may not call,
    `power_source` the source of power samples, once one was taken.
    """

    def __init__(self, nvml: Nvml, handle: Any, card: Any, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._nvml, self._handle, self._card, self._clock = nvml, handle, card, clock
        self.lost: str | None = None
        self.not_permitted: list[str] = []
        self.power_source: str | None = None

    def read(self) -> GpuReading:
        """Return the driver's current values."""
        lib = self._nvml.library
        return GpuReading(
            at_s=self._clock(),
            energy_j=self.energy_j(),
            sm_clock_hz=self._ask("nvmlDeviceGetClockInfo", lib.NVML_CLOCK_SM, scale=MHZ),
            memory_clock_hz=self._ask("nvmlDeviceGetClockInfo", lib.NVML_CLOCK_MEM, scale=MHZ),
            temperature_c=self._ask("nvmlDeviceGetTemperature", lib.NVML_TEMPERATURE_GPU, scale=1.0),
            power_w=self.power_w(),
            throttle_mask=self._ask("nvmlDeviceGetCurrentClocksEventReasons"),
            thermal_throttled_s=self._violation_s(lib.NVML_PERF_POLICY_THERMAL),
            power_throttled_s=self._violation_s(lib.NVML_PERF_POLICY_POWER),
        )

    def with_energy_now(self, reading: GpuReading) -> GpuReading:
        """Return a reading with the current energy and time, so that they enclose the epoch alone."""
        return replace(reading, at_s=self._clock(), energy_j=self.energy_j())

    def use(self, pids: Collection[int]) -> GpuUse:
        """Return the current usage, in total and by these processes."""
        memory, rates = self._ask_own("nvmlDeviceGetMemoryInfo"), self._ask("nvmlDeviceGetUtilizationRates")
        return GpuUse(
            memory_used_bytes=None if memory is None else int(memory.used),
            process_memory_bytes=self._used_by(pids),
            utilisation_share=None if rates is None else rates.gpu * PERCENT,
            power_w=self.power_w(),
        )

    def identity(self) -> GpuProperties:
        """Return the identity of the GPU."""
        capability = self._ask("nvmlDeviceGetCudaComputeCapability")
        mode = self._ask("nvmlDeviceGetMigMode")
        return GpuProperties(
            uuid=self._ask_own("nvmlDeviceGetUUID"),
            compute_capability=None if capability is None else ".".join(map(str, capability)),
            mig=self._handle is not self._card or (None if mode is None else bool(mode[0])),
        )

    def energy_j(self) -> float | None:
        """Return the energy used since the driver was loaded."""
        energy_j: float | None = self._ask("nvmlDeviceGetTotalEnergyConsumption", scale=MILLI)
        return energy_j

    def power_w(self) -> float | None:
        """Return the power drawn: the instantaneous value if the driver provides it, else `nvmlDeviceGetPowerUsage`."""
        if self.power_source != POWER_USAGE and (instant_power_w := self._instant_power_w()) is not None:
            self.power_source = INSTANT
            return instant_power_w
        if self.power_source == INSTANT:  # both sources are never mixed
            return None
        usage: float | None = self._ask("nvmlDeviceGetPowerUsage", scale=MILLI)
        if usage is not None:
            self.power_source = POWER_USAGE
        return usage

    def lock(self) -> str | None:
        """Lock the clock at the rated one, which the GPU sustains under any load; return why this is refused."""
        rated = self._nvml.library.NVML_CLOCK_LIMIT_ID_TDP
        answer = self._nvml.ask("nvmlDeviceSetGpuLockedClocks", self._card, rated, rated)
        return answer.why.removeprefix("NVML: ") if isinstance(answer, Unread) else None

    def unlock(self) -> None:
        """Unlock the clock; a refusal is ignored."""
        self._nvml.ask("nvmlDeviceResetGpuLockedClocks", self._card)

    def _ask(self, name: str, *arguments: Any, scale: float | None = None) -> Any:
        """Return a function's result for the entire card, None for an error."""
        return self._call(name, self._card, *arguments, scale=scale)

    def _ask_own(self, name: str) -> Any:
        """Return a function's result for the GPU or the MIG device itself, None for an error."""
        return self._call(name, self._handle)

    def _call(self, name: str, *arguments: Any, scale: float | None = None) -> Any:
        answer = self._nvml.ask(name, *arguments)
        if isinstance(answer, GpuLost):
            self.lost = self.lost or answer.why
        elif isinstance(answer, NotPermitted) and name not in self.not_permitted:
            self.not_permitted.append(name)
        if isinstance(answer, Unread):
            return None
        return answer if scale is None else answer * scale

    def _instant_power_w(self) -> float | None:
        values = self._ask("nvmlDeviceGetFieldValues", [self._nvml.library.NVML_FI_DEV_POWER_INSTANT])
        return values[0].value.uiVal * MILLI if values and values[0].nvmlReturn == 0 else None

    def _used_by(self, pids: Collection[int]) -> int | None:
        """Return the memory of these processes; None if the driver lists none of them.

        The driver lists the machine's pids, which differ in a container.
        """
        gpu_processes = self._ask_own("nvmlDeviceGetComputeRunningProcesses") or []
        used_bytes: int | None = total(process.usedGpuMemory for process in gpu_processes if process.pid in pids)
        return used_bytes

    def _violation_s(self, policy: int) -> float | None:
        status = self._ask("nvmlDeviceGetViolationStatus", policy)
        return None if status is None else float(status.violationTime) * NANO


Open = Callable[[str], ReadableGpu | Unread]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The driver's values at one moment; energy and throttled times count from when it was loaded.

    `at_s` is when the energy was read, by the reader's monotonic clock.
    """

    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_mask: int | None = None
    energy_j: float | None = None
    thermal_throttled_s: float | None = None
    power_throttled_s: float | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The usage of a GPU at one moment; its utilisation is that of the driver's last period."""

    memory_used_bytes: int | None = None
    process_memory_bytes: int | None = None
    utilisation_share: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """The identity of a GPU; `mig` is whether it is one MIG device of a card."""

    uuid: str | None = None
    compute_capability: str | None = None
    mig: bool | None = None


class Unreadable:
    """Replaces a GPU that cannot be read, so that sums over several GPUs do not silently leave one out."""

    power_source: str | None = None

    def use(self, pids: Collection[int]) -> GpuUse:
        """Return nothing measured."""
        return GpuUse()

    def energy_j(self) -> float | None:
        """Return nothing measured."""
        return None


def open_gpu(visible: str, library: Any = None) -> ReadableGpu | Unread:
    """Return the GPU with this name in `CUDA_VISIBLE_DEVICES`; for one in MIG mode its first MIG device, as in CUDA."""
    nvml = open_nvml(library)
    if isinstance(nvml, Unread):
        return nvml
    handle = nvml.gpu(visible)
    if isinstance(handle, Unread):
        return handle
    return ReadableGpu(nvml, nvml.used_part(handle) or handle, nvml.card(handle))


def readable(gpus: Sequence[ReadableGpu | Unread]) -> tuple[ReadableGpu | Unreadable, ...]:
    """Return what to sample for these GPUs: one entry for each, or nothing if no GPU can be read."""
    if not any(isinstance(gpu, ReadableGpu) for gpu in gpus):
        return ()
    return tuple(gpu if isinstance(gpu, ReadableGpu) else Unreadable() for gpu in gpus)


def over_epochs(
    ends: Sequence[tuple[GpuReading, GpuReading]], identity: GpuProperties = GpuProperties()
) -> GpuEpochs | None:
    """Return a record's figures for the readings at both ends of each measured epoch; None without one. Pure."""
    if not ends:
        return None
    boundaries = [ends[0][0], *(after for _, after in ends)]
    energies_j = [moved(before.energy_j, after.energy_j) for before, after in ends]
    times_s = [moved(before.at_s, after.at_s) for before, after in ends]
    return GpuEpochs(
        sm_clocks_hz=[reading.sm_clock_hz for reading in boundaries],
        memory_clocks_hz=[reading.memory_clock_hz for reading in boundaries],
        temperatures_c=[reading.temperature_c for reading in boundaries],
        powers_w=[reading.power_w for reading in boundaries],
        throttle_reasons=[
            None if reading.throttle_mask is None else ", ".join(reasons_in_words(reading.throttle_mask))
            for reading in boundaries
        ],
        epoch_energies_j=energies_j,
        thermal_throttled_times_s=[moved(b.thermal_throttled_s, a.thermal_throttled_s) for b, a in ends],
        power_throttled_times_s=[moved(b.power_throttled_s, a.power_throttled_s) for b, a in ends],
        uuid=identity.uuid,
        compute_capability=identity.compute_capability,
        mig=identity.mig,
        average_powers_w=[
            None if joules is None or not seconds else joules / seconds
            for joules, seconds in zip(energies_j, times_s, strict=True)
        ],
    )


class CellGpus:
    """The GPUs with these names, as in `CUDA_VISIBLE_DEVICES`. `begin` and `end` alternate."""

    def __init__(self, names: Sequence[str], open_gpu: Open = open_gpu) -> None:
        self._names = names
        self._found = [open_gpu(name) for name in names]
        self._identities = [gpu.identity() if isinstance(gpu, ReadableGpu) else GpuProperties() for gpu in self._found]
        self._before: list[GpuReading | None] = []
        self._ends: list[list[tuple[GpuReading, GpuReading]]] = [[] for _ in names]

    @property
    def sampled(self) -> tuple[ReadableGpu | Unreadable, ...]:
        """The GPUs to sample while the cell works: empty if no GPU can be read."""
        return readable(self._found)

    def begin(self) -> None:
        """Read before an epoch, while the cell rests."""
        self._before = [gpu.read() if isinstance(gpu, ReadableGpu) else None for gpu in self._found]

    def go(self) -> None:
        """Read the energy once more, as the epoch begins."""
        self._before = [
            gpu.with_energy_now(before) if isinstance(gpu, ReadableGpu) and before else None
            for gpu, before in zip(self._found, self._before, strict=False)
        ]

    def end(self) -> None:
        """Read after the epoch."""
        befores, self._before = self._before, []
        for gpu, before, ends in zip(self._found, befores, self._ends, strict=False):
            if isinstance(gpu, ReadableGpu) and before is not None:
                ends.append((before, gpu.read()))

    def epochs(self) -> list[GpuEpochs | None]:
        """Return a record's figures of each GPU, in the order of their names; None for one without a reading."""
        return [
            over_epochs(ends, identity) if ends else None
            for identity, ends in zip(self._identities, self._ends, strict=True)
        ]

    @property
    def lost(self) -> str | None:
        """NVML's message about a lost GPU; None if it reports no lost GPU."""
        for name, gpu in zip(self._names, self._found, strict=True):
            text = gpu.lost if isinstance(gpu, ReadableGpu) else gpu.why if isinstance(gpu, GpuLost) else None
            if text is not None:
                return f"GPU {name}: {text.removeprefix('NVML: ')}"
        return None

    @property
    def unread(self) -> str | None:
        """What could not be read and why, except values that a GPU does not provide; None if all was read."""
        problems = []
        for name, gpu in zip(self._names, self._found, strict=True):
            if isinstance(gpu, Unread):
                problems.append(f"GPU {name}: {gpu.why}")
            elif gpu.not_permitted:
                problems.append(f"GPU {name}: NVML: Insufficient Permissions: {', '.join(gpu.not_permitted)}")
        return "; ".join(problems) or None


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
    gpus = tuple(read_gpu(tree, nvml, handle) for handle in nvml.gpus() if not isinstance(handle, Unread))
    return gpus or Unread("the driver reports no GPU"), driver(nvml)


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
        capability=_converted(
            ask("nvmlDeviceGetCudaComputeCapability", card), lambda capability: (capability[0], capability[1])
        ),
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
    gpu_processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    if isinstance(gpu_processes, Unread):
        return gpu_processes
    # In a container the driver reports the host's pids, for which /proc would name other processes.
    has_names = container_engine(tree) is None
    users = [
        GpuProcess(process.pid, _name(tree, process.pid) if has_names else None, process.usedGpuMemory)
        for process in gpu_processes
    ]
    return tuple(sorted(users, key=lambda process: process.pid))


def _name(tree: ProcTree, pid: int) -> str | None:
    text = tree.text(f"/proc/{pid}/comm")
    return None if isinstance(text, Unread) else printable(text)[:60]


def _throttle_mask(nvml: Nvml, card: Any) -> int | Unread:
    """Return the reasons for throttling; drivers before 535 have the function under its old name."""
    reasons: int | Unread = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", card)
    old_reasons = nvml.value("nvmlDeviceGetCurrentClocksThrottleReasons", card) if isinstance(reasons, Unread) else None
    return reasons if old_reasons is None else old_reasons


def _converted(answer: Any | Unread, convert: Callable[[Any], T]) -> T | Unread:
    """Return a converted value, or why it could not be read."""
    return answer if isinstance(answer, Unread) else convert(answer)
