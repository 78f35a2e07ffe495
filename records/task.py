"""An external command as a cell: what it is asked to run and to report, and what was found of it.

A task's settings are those of one step of one sample: the whole command. Its name is `task NAME`, its `params` are the
values of its axes and `definition`, the hash of everything else that decides what is measured; `backend` holds the
axis over which it is compared: a backend, or `batch_size=32`.

Promise: a metric whose value was not found, or is no finite number, has None and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keras_matrix.records.instruments.usage import MemoryUse

PREFIX = "task "
DEFINITION = "definition"
ALONE = "command"  # in place of the axis, where nothing is compared
UPTIME = "uptime_in_seconds"
METRICS = "task.metrics"  # the path of a record's metrics; each has its name behind it


class Goal(StrEnum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Compute(StrEnum):
    """How the values of a metric become one."""

    AVERAGE = "average"
    LAST = "last"
    FIRST = "first"
    TOTAL = "total"
    MIN = "min"
    MAX = "max"
    MEDIAN = "median"
    P50 = "p50"
    P90 = "p90"
    P99 = "p99"
    AVERAGE_AGGREGATE = "average_aggregate"


def primary_missing(primary: str, problem: str = "") -> str:
    """Return the reason of an attempt whose command ended well but whose primary metric is missing."""
    return f"metric {primary}: {problem}"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """What to find: `pattern` has one group, None where the command reports the metric itself on its pipe.

    The first `discard` values are left out.
    """

    name: str
    pattern: str | None = None
    unit: str | None = None
    compute: Compute = Compute.AVERAGE
    goal: Goal = Goal.LOWER
    discard: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One command, all its values filled in. `command` has one item where a shell reads it.

    `inherit` names what it keeps of the caller's environment beside the usual; None for all of it. `wrap` is put before
    the command; `image` names the image in whose container it runs. `primary` is the metric it is compared by, the
    uptime where there is none.
    """

    name: str
    command: list[str]
    metrics: list[MetricSpec] = field(default_factory=list)
    primary: str = UPTIME
    shell: bool = False
    folder: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    inherit: list[str] | None = field(default_factory=list)
    wrap: list[str] = field(default_factory=list)
    gpus: int = 0
    workers: int = 1
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of one process. `matches` counts the values it was made of; `unit` is as the user writes it."""

    name: str
    value: float | None
    unit: str | None = None
    compute: Compute = Compute.LAST
    goal: Goal = Goal.LOWER
    matches: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TaskRun:
    """What was run, and what was found of it. `command` has its wrapper, and its places for this machine's paths open.

    `outlived` counts the processes that were still there when the command had ended, and were ended. `files` are what
    it left in its outputs folder, which lies in the run's. The memories are of records of version 1; later ones have
    them, and more, in their `usage`.
    """

    name: str
    command: list[str]
    primary: str
    metrics: list[Metric]
    log_bytes: int | None = None
    outlived: int = 0
    host_memory: MemoryUse | None = None
    gpu_memory: MemoryUse | None = None
    files: list[str] = field(default_factory=list)

    @property
    def primary_metric(self) -> Metric | None:
        """Return the metric by which it is compared."""
        return next((one for one in self.metrics if one.name == self.primary), None)
