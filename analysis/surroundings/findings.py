"""Findings about a machine: a check from a closed set, its rating, the observation and one piece of advice.

Guarantee: only what was read is rated; anything else is `unread` with the reason. docs/noise.md lists every limit with
its reason.

Rules on the state that a GPU's driver reports. Pure.

Source of the bits: NVML's nvmlClocksEventReasons (nvml.h), the same numbers nvidia-smi prints.
Limits: the driver does not report whether clocks are locked; GPUs of other makers are not examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from keras_matrix.analysis.surroundings.readings import Gpu, GpuProcess
from keras_matrix.records.host.procfs import Unread
from keras_matrix.records.text import bytes_text

T = TypeVar("T")
MHZ = 1_000_000


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


def worst(found: Iterable[MachineFinding]) -> Rating:
    """Return `bad` if any finding is, else `doubtful` if any is, else `fine`."""
    verdicts = {finding.verdict for finding in found}
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
    capability = "" if isinstance(gpu.capability, Unread) else ".".join(map(str, gpu.capability))
    suffix = f", compute capability {capability}" if capability else ""
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
    bad = any(mask & bit for bit in BAD_REASONS)
    rating = Rating.BAD if bad else Rating.DOUBTFUL if reasons else Rating.FINE
    return rating, ", ".join(reasons) or "none now", "lock the clocks lower, cool it, raise its power limit"


def _persistence(gpu: Gpu) -> Judgement:
    if known(gpu.persistence):
        return Rating.FINE, "on", ""
    return Rating.DOUBTFUL, "off: the driver unloads between processes, and each starts it again", "nvidia-smi -pm 1"


def _users(gpu: Gpu) -> Judgement:
    users = ", ".join(map(process_text, known(gpu.users)))
    if not users:
        return Rating.FINE, "no other process", ""
    advice = "stop them, or choose another GPU with CUDA_VISIBLE_DEVICES"
    return Rating.BAD, f"other processes compute on it: {users}", advice


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
