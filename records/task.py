"""An external command as a cell: its definition, its metrics and its results.

A task's settings are those of one step of one sample: the entire command. Its name is `task NAME`, its `params` are the
values of its axes and `definition`, a hash of everything else that determines what is measured; `backend` is the axis
over which it is compared: a backend, or `batch_size=32`.

A metric whose value was not found, or is not a finite number, has None and a `problem`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keras_matrix.records.instruments.usage import MemoryUse

PREFIX = "task "
DEFINITION = "definition"
ALONE = "command"  # instead of an axis, if nothing is compared
UPTIME = "uptime_in_seconds"
METRICS = "task.metrics"  # path of a record's metrics; the name of each follows


class Goal(StrEnum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Compute(StrEnum):
    """How the values of a metric are aggregated."""

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
    """Return the reason of an attempt whose command succeeded but whose primary metric is missing."""
    return f"metric {primary}: {problem}"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric to read: `pattern` has one group, None if the command reports the metric itself on its pipe.

    The first `discard` values are omitted.
    """

    name: str
    pattern: str | None = None
    unit: str | None = None
    compute: Compute = Compute.AVERAGE
    goal: Goal = Goal.LOWER
    discard: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One command with all values filled in. `command` has one item if a shell reads it.

    `inherit` names further variables that it inherits from the caller's environment; None: all but
    credentials. `wrap` precedes the command; `image` is the image of its container. `primary` is the metric by which it
    is compared, by default the uptime.
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
    """One metric of one process. `matches` counts the values that were aggregated; `unit` is the user's text."""

    name: str
    value: float | None
    unit: str | None = None
    compute: Compute = Compute.LAST
    goal: Goal = Goal.LOWER
    matches: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The command that was run, and its results. `command` includes its wrapper; placeholders stand for local paths.

    `outlived` counts the processes that still ran when the command had ended, and were killed. `files` are those in its
    outputs folder, which is in the run's. Only records of version 1 have the memories; later ones have `usage`.
    """

    name: str
    command: list[str]
    primary: str
    metrics: list[Metric]
    log_bytes: int | None = None
    outlived: int | None = 0
    host_memory: MemoryUse | None = None
    gpu_memory: MemoryUse | None = None
    files: list[str] = field(default_factory=list)

    @property
    def primary_metric(self) -> Metric | None:
        """Return the metric by which it is compared."""
        return next((metric for metric in self.metrics if metric.name == self.primary), None)
