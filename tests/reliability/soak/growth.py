"""The growth of memory and open files with the number of cells: robust slopes, compared with their bounds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.reliability.soak.running import Use

# Which cells have ended: about 1 kB each in the runner (plan, progress, attempts, digests of records).
MEMORY_BOUND_BYTES = 2048.0
FILES_BOUND = 0.005


@dataclass(frozen=True, slots=True)
class Growth:
    """What a process had at the first and the last sample, and its growth per cell."""

    first: Use
    last: Use
    memory_bytes: float
    files: float

    @property
    def flat(self) -> bool:
        """Whether both slopes are below their bounds."""
        return self.memory_bytes <= MEMORY_BOUND_BYTES and self.files <= FILES_BOUND


def growth(samples: Sequence[tuple[int, Use]]) -> Growth:
    """Return the growth of one process from its use after so many cells.

    Neither the first cells, which fill caches and the allocator's pools, nor the samples that were taken while a cell
    was alive decide a median slope.
    """
    return Growth(
        first=samples[0][1],
        last=samples[-1][1],
        memory_bytes=slope([(cells, use.anonymous_bytes) for cells, use in samples]),
        files=slope([(cells, use.open_files) for cells, use in samples]),
    )


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the median slope of all pairs of points (Theil and Sen); 0 without a pair."""
    pairs = itertools.combinations(points, 2)
    return statistics.median([(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x1 != x2] or [0.0])
