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
# The first cells fill caches and the allocator's pools.
WARM_UP_SHARE = 0.2
WINDOW = 4  # open files are fewest between two comparisons: the minimum of so many samples


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
    """Return the growth of one process from its use after so many cells."""
    warm = [one for one in samples if one[0] >= WARM_UP_SHARE * samples[-1][0]]
    windows = [warm[i : i + WINDOW] for i in range(0, len(warm), WINDOW)]
    fewest = [min(((cells, use.open_files) for cells, use in window), key=lambda one: one[1]) for window in windows]
    return Growth(
        first=warm[0][1],
        last=warm[-1][1],
        memory_bytes=slope([(cells, use.anonymous_bytes) for cells, use in warm]),
        files=slope(fewest),
    )


def slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the median slope of all pairs of points (Theil and Sen); 0 without a pair."""
    pairs = itertools.combinations(points, 2)
    return statistics.median([(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x1 != x2] or [0.0])
