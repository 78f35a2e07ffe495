"""The usage of one process and its device over time: summary figures in a record, and a thinned series in a file.

Sampled by the process's parent while the process works, not while it waits. For a workload, mean, deviation and maximum
cover its measured epochs, and `peak_` covers its life up to the end of the last one: later work (counting FLOPs, a
profile) is not part of the measurement. For an external command, and without any measured epoch, all cover the entire
life. Several GPUs are separate samples, so that a mean is per GPU and a maximum is that of the largest;
`devices_memory`, energy and average power are sums over all. The energy of the CPUs is the machine's.

`None` means not measured. A series has at most `MOST_POINTS` points, each the maximum of the samples that it replaces,
so that thinning hides no peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from keras_matrix.records.codec import about

MOST_POINTS = 400
SERIES = "usage"
FORMER_SERIES = "courses"  # the folder's name up to schema version 3


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
    """The usage of a process, with its descendants, and its device."""

    span_s: float = about("time that the process worked and was sampled")
    interval_s: float = about("requested time between two samples")
    host_source: str = about("source of host_anonymous: processes (RssAnon of the tree), or cgroup (of its container)")
    course: str | None = about("file of the usage series, in the run's folder", default=None)
    host_anonymous: MemoryUse | None = about("host memory without a backing file, of the process tree", default=None)
    host_resident: MemoryUse | None = about("resident size of the tree; shared pages count repeatedly", default=None)
    host_proportional_bytes: list[int | None] = about(
        "proportional set size of the tree after each measured epoch, at rest: shared pages are divided",
        default_factory=list,
    )
    host_growth_bytes_per_step: float | None = about(
        "anonymous host memory that the process keeps with each step of the measured epochs; null below eight readings",
        default=None,
    )
    device_growth_bytes_per_step: float | None = about(
        "likewise memory in use by the framework's allocator, read between the measured epochs", default=None
    )
    device_memory: MemoryUse | None = about(
        "memory reserved on the device by all processes, as its driver reports it, preallocation included", default=None
    )
    device_process_memory: MemoryUse | None = about("memory the driver counts for these processes", default=None)
    device_utilisation: ShareUse | None = about(
        "share of time in which the device had work; null if measured epochs are shorter than the driver's 1 s period",
        default=None,
    )
    device_power: PowerUse | None = about("samples of a device's power", default=None)
    device_energy_j: float | None = about("energy used in the measured epochs, by the device's counter", default=None)
    samples_per_j: float | None = about("samples trained or predicted in them, per joule of the device", default=None)
    device_average_power_w: float | None = about(
        "that energy over the time of those epochs: the power of all devices", default=None
    )
    device_power_source: str | None = about(
        "source of the power samples: instant (NVML_FI_DEV_POWER_INSTANT), or power_usage (nvmlDeviceGetPowerUsage, an "
        "average over one second on Ampere and later except GA100)",
        default=None,
    )
    cpu_energy_j: float | None = about(
        "energy of all CPU packages in the measured epochs, by their counters (RAPL), other programs included",
        default=None,
    )
    dram_energy_j: float | None = about("likewise of the memory; null where it is not counted", default=None)
    cpu_average_power_w: float | None = about(
        "power of all CPU packages over those epochs, memory not included", default=None
    )
    cpu_energy_unread: str | None = about("why the energy of the CPUs was not measured", default=None)
    devices: int | None = about("number of sampled GPUs", default=None)
    devices_memory: MemoryUse | None = about("memory reserved on all of several GPUs together", default=None)


@dataclass(frozen=True, slots=True)
class UsageSeries:
    """Values over the working time of a process; `times_s` count from its start, without its waiting times.

    A quantity that was never measured has an empty list, any other a value or None per time. `epochs_s` are begin and
    end of each measured epoch.
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
        """Whether each measured quantity has a value or None per time, and each epoch a begin and an end."""
        columns = [
            getattr(self, series_field.name)
            for series_field in fields(self)
            if series_field.name not in ("times_s", "epochs_s")
        ]
        lengths = {len(column) for column in columns} - {0}
        return lengths <= {len(self.times_s)} and all(len(ends) == 2 for ends in self.epochs_s)


def usage_series_name(key: tuple[str, int, int], folder: str = SERIES) -> str:
    """Return the file of the series of the record with this key, in its run's folder."""
    return "{}/{}.{}.{}.json".format(folder, *key)
