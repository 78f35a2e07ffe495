"""What was read of a machine before it is judged: values only, each either read or `Unread` with the reason.

Promise: a value is what the machine said. What could not be read is `Unread`, never a likely value; None means that the
machine said there is none (no limit, no driver).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keras_matrix.analysis.surroundings.disturbance import OwnUse, Stretch
from keras_matrix.records.host.procfs import Unread


@dataclass(frozen=True, slots=True)
class Clocks:
    """What sets the speed of the CPUs and of reading the time."""

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
    """Throttling since the machine started, and how warm it is."""

    throttle_events: int | Unread
    zones: tuple[Zone, ...] | Unread


@dataclass(frozen=True, slots=True)
class Limits:
    """What this process may use of the machine."""

    cpus_allowed: int
    cpus_online: int | Unread
    quota_cpus: float | Unread | None
    memory_limit_bytes: int | Unread | None
    memory_used_bytes: int | Unread


@dataclass(frozen=True, slots=True)
class Placement:
    """Where this process runs."""

    hypervisor: str | Unread | None
    container: str | None
    numa_nodes: tuple[int, ...] | Unread
    """The nodes that the CPUs this process may use belong to."""
    aslr: int | Unread
    missing_rights: tuple[str, ...] = ()
    cores_of_a_node: int | None = None
    """Cores of the node that has the most, as far as this process may use them."""


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
    """The NVIDIA driver: its version ("535.104.05") and the newest CUDA that it runs."""

    version: str | Unread
    cuda: tuple[int, int] | Unread


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver reports it; `throttle_mask` has the bits of NVML's clocks event reasons.

    `capability` is the compute capability, `mig` whether it is divided by Multi-Instance GPU or is a part of such a
    one, `ecc_errors` the uncorrected memory errors since the driver was loaded, `compute_mode` NVML's number of who may
    use it (nvml.h: nvmlComputeMode_t).
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
    """What the machine did while it was watched, and what the watching itself used."""

    stretch: Stretch | Unread
    own: OwnUse
    others: tuple[Process, ...] | Unread


@dataclass(frozen=True, slots=True)
class Readings:
    """Everything that was read."""

    clocks: Clocks
    heat: Heat
    limits: Limits
    place: Placement
    swap: Swap | Unread
    load: float | Unread
    meanwhile: Meanwhile
    gpus: tuple[Gpu, ...] | Unread | None = None
    driver: Driver | None = None
    pair_log_ratios: tuple[float, ...] = field(default=())
