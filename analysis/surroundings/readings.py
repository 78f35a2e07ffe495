"""What was read from a machine, and the findings about it, each with its rating and one piece of advice.

Guarantee: values are as the machine reports them. What could not be read is `Unread`, never a likely value; None means
that the machine reports its absence (no limit, no driver).

Guarantee: only what was read is rated; anything else is `unread` with the reason. docs/noise.md lists every limit.

Rules on the state that a GPU's driver reports. Pure.

Source of the bits: NVML's nvmlClocksEventReasons (nvml.h), the same numbers nvidia-smi prints.
Limits: the driver does not report whether clocks are locked; GPUs of other makers are not examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from keras_matrix.analysis.surroundings.disturbance import CounterChanges, OwnUse
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.text import bytes_text

T = TypeVar("T")
MHZ = 1_000_000


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


@dataclass(frozen=True, slots=True)
class Limit:
    """A value above `doubtful` or above `bad` is rated so; an equal value gets the milder rating."""

    doubtful: float
    bad: float

    def verdict(self, value: float) -> Rating:
        """Return the rating of a value."""
        if value > self.bad:
            return Rating.BAD
        return Rating.DOUBTFUL if value > self.doubtful else Rating.FINE


# Data-centre GPUs begin to slow down between 85 and 95 C; not every one reports nvidia-smi's own limit.
TEMPERATURE_C = Limit(75.0, 85.0)
# 0x1 (idle), 0x2 (clocks set by the user) and 0x100 (display) are not throttling.
BAD_REASONS = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake"}
DOUBTFUL_REASONS = {0x04: "power cap", 0x10: "held to another GPU's clock"}


class Check(StrEnum):
    """The checks of a machine. A closed set."""

    RESOLUTION = "resolution"
    OTHER_CPU = "other_cpu"
    STEAL = "steal"
    LOAD = "load"
    CPU_PRESSURE = "cpu_pressure"
    MEMORY_PRESSURE = "memory_pressure"
    IO_PRESSURE = "io_pressure"
    THROTTLING = "throttling"
    TEMPERATURE = "temperature"
    SWAP = "swap"
    GOVERNOR = "governor"
    TURBO = "turbo"
    SMT = "smt"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    RIGHTS = "rights"
    NUMA = "numa"
    VIRTUALISATION = "virtualisation"
    CLOCK_SOURCE = "clock_source"
    ASLR = "aslr"
    GPU = "gpu"
    GPU_CLOCKS = "gpu_clocks"
    GPU_TEMPERATURE = "gpu_temperature"
    GPU_THROTTLING = "gpu_throttling"
    GPU_PERSISTENCE = "gpu_persistence"
    GPU_USERS = "gpu_users"
    GPU_MIG = "gpu_mig"
    GPU_ECC = "gpu_ecc"
    GPU_BUILD = "gpu_build"


class Rating(StrEnum):
    """The meaning of a finding for measurements. `unread`: the value is unknown, so it is not rated."""

    FINE = "fine"
    DOUBTFUL = "doubtful"
    BAD = "bad"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """The result of one check; `advice` is None if there is nothing to do."""

    check: Check
    verdict: Rating
    observed: str
    advice: str | None = None


def worst(findings: Iterable[MachineFinding]) -> Rating:
    """Return `bad` if any finding is, else `doubtful` if any is, else `fine`."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Rating.BAD, Rating.DOUBTFUL) if v in verdicts), Rating.FINE)


Judgement = tuple[Rating, str, str]
"""A rating, the observation, and the advice that applies unless the rating is `fine`."""


class NotReadError(Exception):
    """A rule needs a value that could not be read; the message is the reason."""


def known(reading: T | Unread) -> T:
    """Return the value of a reading. Raises `NotReadError` if it could not be read."""
    if isinstance(reading, Unread):
        raise NotReadError(reading.why)
    return reading


def apply(rules: Mapping[Check, Callable[[T], Judgement]], subject: T) -> Iterator[MachineFinding]:
    """Yield the finding of each rule about the subject; `unread` if a rule lacks a reading."""
    for check, rule in rules.items():
        try:
            rating, observed, advice = rule(subject)
        except NotReadError as error:
            rating, observed, advice = Rating.UNREAD, f"not readable: {error}", ""
        yield MachineFinding(check, rating, observed, advice if advice and rating is not Rating.FINE else None)


def gpu_findings(gpus: tuple[Gpu, ...] | Unread | None) -> Iterator[MachineFinding]:
    """Yield the findings about every GPU; a single finding if there is no GPU or nothing can be read."""
    if isinstance(gpus, Unread) or not gpus:
        yield from apply({Check.GPU: _driver}, gpus)
        return
    for gpu in gpus:
        yield from apply(GPU_RULES, gpu)


def reasons_in_words(mask: int) -> list[str]:
    """Return the reasons that limit a GPU's clock, the bad ones first."""
    return [text for bit, text in {**BAD_REASONS, **DOUBTFUL_REASONS}.items() if mask & bit]


def process_text(process: GpuProcess) -> str:
    """Return a process's name, id and GPU memory, as far as they are known."""
    details = [f"process {process.pid}"] if process.name else []
    if process.memory_bytes is not None:
        details.append(f"{bytes_text(process.memory_bytes)}")
    name = process.name or f"process {process.pid}"
    return f"{name} ({', '.join(details)})" if details else name


def _driver(gpus: tuple[Gpu, ...] | Unread | None) -> Judgement:
    known(gpus)
    return Rating.FINE, "no NVIDIA driver is loaded; other makers' GPUs are not examined", ""


def _name(gpu: Gpu) -> Judgement:
    capability_text = "" if isinstance(gpu.capability, Unread) else ".".join(map(str, gpu.capability))
    suffix = f", compute capability {capability_text}" if capability_text else ""
    return Rating.FINE, f"GPU {gpu.index}: {gpu.name}{suffix}", ""


def _clocks(gpu: Gpu) -> Judgement:
    clock, most = known(gpu.clock_hz) / MHZ, known(gpu.max_clock_hz) / MHZ
    text = f"not readable: whether they are locked; now {clock:.0f} of at most {most:.0f} MHz"
    return Rating.UNREAD, text, "lock them while measuring: --set clocks=locked"


def _temperature(gpu: Gpu) -> Judgement:
    celsius = known(gpu.temperature_c)
    return TEMPERATURE_C.verdict(celsius), f"{celsius:.0f} C", "let it cool, repair its cooling"


def _throttling(gpu: Gpu) -> Judgement:
    mask = known(gpu.throttle_mask)
    reasons = reasons_in_words(mask)
    is_bad = any(mask & bit for bit in BAD_REASONS)
    rating = Rating.BAD if is_bad else Rating.DOUBTFUL if reasons else Rating.FINE
    return rating, ", ".join(reasons) or "none now", "lock the clocks lower, cool it, raise its power limit"


def _persistence(gpu: Gpu) -> Judgement:
    if known(gpu.persistence):
        return Rating.FINE, "on", ""
    return Rating.DOUBTFUL, "off: the driver unloads between processes, and each starts it again", "nvidia-smi -pm 1"


def _users(gpu: Gpu) -> Judgement:
    users_text = ", ".join(map(process_text, known(gpu.users)))
    if not users_text:
        return Rating.FINE, "no other process", ""
    advice = "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES"
    return Rating.BAD, f"other processes compute on it: {users_text}", advice


def _mig(gpu: Gpu) -> Judgement:
    if not known(gpu.mig):
        return Rating.FINE, "off", ""
    text = "divided by Multi-Instance GPU: a slice has part of the GPU, but its power is that of the full GPU"
    return Rating.DOUBTFUL, text, "nvidia-smi -mig 0"


def _ecc(gpu: Gpu) -> Judgement:
    if isinstance(gpu.ecc, Unread) and gpu.ecc.absent:
        return Rating.FINE, "this GPU has no ECC", ""
    if gpu.ecc is False:
        return Rating.FINE, "off: memory errors are not detected", ""
    errors = known(gpu.ecc_errors)
    advice = "reset the GPU: nvidia-smi --gpu-reset; replace it if they return"
    text = f"{errors} uncorrected memory errors since the driver was loaded"
    return Rating.BAD if errors else Rating.FINE, text, advice


GPU_RULES = {
    Check.GPU: _name,
    Check.GPU_CLOCKS: _clocks,
    Check.GPU_TEMPERATURE: _temperature,
    Check.GPU_THROTTLING: _throttling,
    Check.GPU_PERSISTENCE: _persistence,
    Check.GPU_USERS: _users,
    Check.GPU_MIG: _mig,
    Check.GPU_ECC: _ecc,
}
