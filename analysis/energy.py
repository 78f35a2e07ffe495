"""The mean power of a cell's device over its measured epochs.

Energy over time where the device has an energy counter; else the mean of the power readings, which on many GPUs are
averages over a second, longer than most epochs (NVML, `nvmlDeviceGetPowerUsage`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from records.schema import Record


def mean_power_w(measured: Sequence[Record]) -> float | None:
    """Return the median over a cell's measured processes of their device's mean power; None where none has it."""
    found = [power for record in measured if (power := _of_process(record)) is not None]
    return statistics.median(found) if found else None


def _of_process(record: Record) -> float | None:
    usage, span_s = record.usage, sum(record.times.epoch_times_s)
    if usage is None:
        return None
    if usage.device_energy_j is not None and span_s > 0:
        return usage.device_energy_j / span_s
    return usage.device_power.mean_w if usage.device_power else None
