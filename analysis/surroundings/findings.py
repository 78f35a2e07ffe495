"""What a finding is: a name of a closed set, a verdict, what was seen and one advice.

Promise: a verdict is given only on what was read; anything else is `unread` with the reason. docs/noise.md holds every
limit with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.records.host.procfs import Unread


class Check(StrEnum):
    """What is looked at. A closed set."""

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
    """What a finding means for measuring. `unread`: nothing is known, so nothing is said."""

    FINE = "fine"
    DOUBTFUL = "doubtful"
    BAD = "bad"
    UNREAD = "unread"


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One thing that was looked at; `advice` is None where there is nothing to do."""

    check: Check
    verdict: Rating
    observed: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """Above `doubtful` and above `bad` a value is that; equal is still the milder one."""

    doubtful: float
    bad: float

    def verdict(self, value: float) -> Rating:
        """Return what a value is."""
        if value > self.bad:
            return Rating.BAD
        return Rating.DOUBTFUL if value > self.doubtful else Rating.FINE


def worst(found: Iterable[MachineFinding]) -> Rating:
    """Return `bad` if any finding is, else `doubtful` if any is, else `fine`."""
    verdicts = {finding.verdict for finding in found}
    return next((v for v in (Rating.BAD, Rating.DOUBTFUL) if v in verdicts), Rating.FINE)


def unread(check: Check, reading: Unread) -> MachineFinding:
    """Return the finding that nothing could be read."""
    return MachineFinding(check, Rating.UNREAD, f"not readable: {reading.why}")


def judged(check: Check, verdict: Rating, seen: str, advice: str) -> MachineFinding:
    """Return a finding that carries its advice only where something is to be done."""
    return MachineFinding(check, verdict, seen, None if verdict is Rating.FINE else advice)
