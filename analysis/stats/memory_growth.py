"""How much memory a process keeps with each step: its slope over the measured epochs, and whether it matters. Pure.

What a process keeps is the lower edge of its memory: at each reading, the least of this and all later ones. Temporary
arrays, allocators' free lists and the garbage collector's cycles are above it. The readings are cut into eight
stretches, each with its least level. The slope is the median of the seven slopes between successive levels if the rise
is steady: this median and the slope of each half are at least seven tenths of the slope from end to end. Else it is 0:
a jump, two jumps, a rise that ends and a sawtooth with several teeth keep nothing with each step. Theil and Sen's slope
over all pairs would call a jump in the middle a growth, since more than half of the pairs lie across it; least squares
would call any jump one.

Limits: memory kept in a few large pieces looks like jumps; a sawtooth with one or two teeth looks like a growth.
`tests/analysis/stats/test_memory_growth.py` simulates both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from keras_matrix.analysis.stats.blocks import Estimate, arithmetic
from keras_matrix.records.schema import MEASURED, Record
from keras_matrix.records.text import MEMORY_UNITS, Unit, quantity, unit_for

LEAST_READINGS = 8
STRETCHES = 8
# Over the measured epochs together: less is the settling of allocators and caches.
LEAST_GROWTH_BYTES = 4 << 20
LEAST_GROWTH_SHARE = 0.01

# Of the mean slope: the least slope of each half, and the least median slope, of a steady rise.
LEAST_SHARE = 0.7
WARNING = "memory_grows"

Reading = tuple[float, int]
"""A reading of memory: when, as the number of epochs done (1.5 is the middle of the second), and the bytes in use."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The slope of a process's memory over its measured epochs, their steps, and its level at their start."""

    bytes_per_step: float
    steps: float
    level_bytes: float

    @property
    def matters(self) -> bool:
        """Return whether the growth over these epochs is more than what settles."""
        least_bytes = max(LEAST_GROWTH_BYTES, LEAST_GROWTH_SHARE * self.level_bytes)
        return self.bytes_per_step * self.steps >= least_bytes


def growth(readings: Sequence[Reading], steps_per_epoch: int) -> Growth | None:
    """Return the growth of a process; None below eight readings."""
    if len(readings) < LEAST_READINGS:
        return None
    kept_levels: list[float] = []
    least = float("inf")
    for _, in_use in reversed(readings):
        least = min(least, in_use)
        kept_levels.append(least)
    kept_levels.reverse()
    begins = [len(readings) * number // STRETCHES for number in range(STRETCHES)]
    points = [(readings[begin][0], kept_levels[begin]) for begin in begins]  # the first is the least of its stretch
    if any(earlier >= later for (earlier, _), (later, _) in pairwise(points)):
        return None
    epoch_count = readings[-1][0] - readings[0][0]
    return Growth(_steady_slope(points) / steps_per_epoch, epoch_count * steps_per_epoch, points[0][1])


def _steady_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between successive levels; 0 unless they rise alike in both halves and most stretches."""
    half = len(points) // 2
    slope = statistics.median(_slope(*pair) for pair in pairwise(points))
    slopes = (slope, _slope(points[0], points[half - 1]), _slope(points[half], points[-1]))
    return slope if slope > 0 and min(slopes) >= LEAST_SHARE * _slope(points[0], points[-1]) else 0.0


def _slope(first_point: tuple[float, float], last_point: tuple[float, float]) -> float:
    return (last_point[1] - first_point[1]) / (last_point[0] - first_point[0])


def host_growth(records: Sequence[Record]) -> Estimate | None:
    """Return the mean of a cell's processes of the host memory kept with each step, with its interval, in bytes."""
    slopes = [r.usage.host_growth_bytes_per_step for r in records if r.status in MEASURED and r.usage]
    return arithmetic([slope for slope in slopes if slope is not None])


def device_growth(records: Sequence[Record]) -> Estimate | None:
    """Return likewise the device memory kept with each step."""
    slopes = [r.usage.device_growth_bytes_per_step for r in records if r.status in MEASURED and r.usage]
    return arithmetic([slope for slope in slopes if slope is not None])


def growth_text(estimate: Estimate) -> str:
    """Return an estimate as text: "8.00 MiB a step [7.91 8.12]"; without an interval below five processes."""
    unit = unit_for([estimate.centre], MEMORY_UNITS)
    return quantity(estimate.centre, Unit(f"{unit.name} a step", unit.size), estimate.low, estimate.high)
