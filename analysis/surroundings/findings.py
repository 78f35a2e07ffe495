"""Findings about a machine: a check from a closed set, its rating, the observation and one piece of advice.

Guarantee: only what was read is rated; anything else is `unread` with the reason. docs/noise.md lists every limit with
its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from keras_matrix.records.host.procfs import Unread

T = TypeVar("T")


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
