"""What one process and its device used over time: in a record as few figures, beside it as a course of few points.

Sampled by the process's parent while the process works; while it waits for its turn nothing is sampled. Of a workload
mean, deviation and the largest value are those of its kept epochs, and `peak_` is of its life up to the end of the last
one: what comes after (counting FLOPs, a profile) is no part of what was measured. Of an external command, and of what
came to no kept epoch, all are of the whole life. Of several GPUs each is a sample of its own, so that a mean is that of
one GPU and a largest value that of the largest; `devices_memory`, energy and average power are of all together.

Promise: `None` means not measured. A course never has more than `MOST_POINTS` points, each the largest value of the
samples it stands for, so that thinning hides no peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from keras_matrix.records.field_docs import about

MOST_POINTS = 400
COURSES = "courses"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory over time, in bytes."""

    mean_bytes: float
    std_bytes: float
    max_bytes: int
    samples: int
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShareUse:
    """A share from 0 to 1 over time."""

    mean_share: float
    std_share: float
    max_share: float
    samples: int


@dataclass(frozen=True, slots=True)
class PowerUse:
    """Power over time, in watts."""

    mean_w: float
    std_w: float
    max_w: float
    samples: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process, with all below it, and its device used."""

    span_s: float = about("time the process worked and was sampled")
    interval_s: float = about("time between two samples, as asked for")
    host_source: str = about(
        "where anonymous host memory was read: processes (RssAnon summed over the tree), or cgroup (of its container)"
    )
    course: str | None = about("file of the run's folder that holds the course", default=None)
    host_anonymous: MemoryUse | None = about("host memory that no file backs, of the process tree", default=None)
    host_resident: MemoryUse | None = about(
        "resident size summed over the process tree; what processes share counts once for each", default=None
    )
    host_proportional_bytes: list[int | None] = about(
        "proportional set size of the tree after each kept epoch, at rest: what processes share is divided among them",
        default_factory=list,
    )
    device_memory: MemoryUse | None = about(
        "memory reserved on the device, by whomever, as its driver says, with what backends reserve beforehand",
        default=None,
    )
    device_process_memory: MemoryUse | None = about("memory the driver counts for these processes", default=None)
    device_utilisation: ShareUse | None = about(
        "share of the time that the device had work; null if each measured epoch was shorter than the driver's period, "
        "one second",
        default=None,
    )
    device_power: PowerUse | None = about("samples of the power that a device drew", default=None)
    device_energy_j: float | None = about("energy the device used in the kept epochs, by its own counter", default=None)
    samples_per_j: float | None = about("samples trained or predicted in them, per joule", default=None)
    device_average_power_w: float | None = about(
        "that energy divided by the time of those epochs: the power of all its devices", default=None
    )
    device_power_source: str | None = about(
        "what the samples of power are: instant (NVML_FI_DEV_POWER_INSTANT), or power_usage (nvmlDeviceGetPowerUsage, "
        "an average over one second on Ampere and later except GA100)",
        default=None,
    )
    devices: int | None = about("GPUs that were sampled", default=None)
    devices_memory: MemoryUse | None = about(
        "memory reserved on all of them together, where there are several", default=None
    )


@dataclass(frozen=True, slots=True)
class UsageSeries:
    """Values over the time a process worked, `times_s` from its start, its rests left out.

    A quantity that was never measured has an empty list; else there is a value, or None, for each time. `epochs_s`
    holds begin and end of each kept epoch.
    """

    times_s: list[float] = field(default_factory=list)
    host_anonymous_bytes: list[int | None] = field(default_factory=list)
    host_resident_bytes: list[int | None] = field(default_factory=list)
    device_memory_bytes: list[int | None] = field(default_factory=list)
    device_process_memory_bytes: list[int | None] = field(default_factory=list)
    device_utilisation_share: list[float | None] = field(default_factory=list)
    device_power_w: list[float | None] = field(default_factory=list)
    epochs_s: list[list[float]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether there is a value or None for each time of each quantity, and a begin and an end of each epoch."""
        columns = [getattr(self, one.name) for one in fields(self) if one.name not in ("times_s", "epochs_s")]
        lengths = {len(column) for column in columns} - {0}
        return lengths <= {len(self.times_s)} and all(len(ends) == 2 for ends in self.epochs_s)


def usage_series_name(key: tuple[str, int, int]) -> str:
    """Return where the course of the record with this key lies in its run's folder."""
    return "{}/{}.{}.{}.json".format(COURSES, *key)
