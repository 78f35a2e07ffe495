"""Values read from a machine before they are rated, each either the value or `Unread` with the reason.

Guarantee: values are as the machine reports them. What could not be read is `Unread`, never a likely value; None means
that the machine reports its absence (no limit, no driver).
"""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.analysis.surroundings.disturbance import CounterChanges, OwnUse
from keras_matrix.records.host.procfs import Unread


@dataclass(frozen=True, slots=True)
class Clocks:
    """The settings that determine the speed of the CPUs and of reading the time."""

    governors: tuple[str, ...] | Unread
    driver: str | Unread
    turbo: bool | Unread
    smt: str | Unread
    clock_source: str | Unread


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone, in degrees Celsius; `limit_c` is the lowest temperature at which it slows the machine down."""

    name: str
    temperature_c: float
    limit_c: float | None


@dataclass(frozen=True, slots=True)
class Heat:
    """Throttling since the machine started, and current temperatures."""

    throttle_events: int | Unread
    zones: tuple[Zone, ...] | Unread


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The CPUs and the memory that this process may use."""

    cpus_allowed: int
    cpus_online: int | Unread
    quota_cpus: float | Unread | None
    memory_limit_bytes: int | Unread | None
    memory_used_bytes: int | Unread


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """The virtualisation, container and NUMA nodes that this process runs in."""

    hypervisor: str | Unread | None
    container: str | None
    numa_nodes: tuple[int, ...] | Unread
    """The nodes that the CPUs this process may use belong to."""
    aslr: int | Unread
    missing_rights: tuple[str, ...] = ()
    cores_of_a_node: int | None = None
    """The largest number of cores of one node that this process may use."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Swap space, in bytes."""

    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process outside the run, and the share of one CPU that it and its ended children used."""

    name: str
    cpu_share: float
    pid: int

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid}, {self.cpu_share:.2f} CPUs)"


NOT_READ = Unread("not read")


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; its name and memory are None if the driver or the system hides them."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver: its version ("535.104.05") and the newest CUDA version that it supports."""

    version: str | Unread
    cuda: tuple[int, int] | Unread


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver reports it; `throttle_mask` has the bits of NVML's clocks event reasons.

    `capability` is the compute capability, `mig` whether it is divided by Multi-Instance GPU or is one of the
    parts, `ecc_errors` the uncorrected memory errors since the driver was loaded, `compute_mode` NVML's number
    (nvml.h: nvmlComputeMode_t).
    """

    index: int
    name: str
    clock_hz: int | Unread
    max_clock_hz: int | Unread
    temperature_c: float | Unread
    throttle_mask: int | Unread
    persistence: bool | Unread
    users: tuple[GpuProcess, ...] | Unread
    uuid: str = ""
    capability: tuple[int, int] | Unread = NOT_READ
    mig: bool | Unread = NOT_READ
    ecc: bool | Unread = NOT_READ
    ecc_errors: int | Unread = NOT_READ
    memory_bytes: int | Unread = NOT_READ
    compute_mode: int | Unread = NOT_READ


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The machine's activity while it was watched, and the resources used by the watching itself."""

    stretch: CounterChanges | Unread
    own: OwnUse
    others: tuple[Process, ...] | Unread


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings of a machine."""

    clocks: Clocks
    heat: Heat
    limits: ResourceLimits
    place: ProcessPlacement
    swap: Swap | Unread
    load: float | Unread
    meanwhile: Meanwhile
    gpus: tuple[Gpu, ...] | Unread | None = None
    driver: Driver | None = None
    pair_log_ratios: tuple[float, ...] = ()
