"""How long the collectives of a step of the FC modes take, as a cell saw it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum

# After everything timed so many epochs are watched, of at most so long each where a step is shorter.
WATCHED_EPOCHS = 5
WATCHED_EPOCH_S = 0.3


class Method(StrEnum):
    """How the time of collectives was found.

    TIMED: each is a call, and was timed by itself, the device idle before and after it; packing and waiting for the
    other workers count, and nothing overlaps. PROFILED: they are parts of a compiled program, whose operations the
    backend's own profiler saw; packing counts, waiting as far as it lies within an operation.
    """

    TIMED = "timed"
    PROFILED = "profiled"


@dataclass(frozen=True, slots=True)
class Communication:
    """How long the collectives of a step take, seen in epochs of their own, after everything that is timed.

    Seconds of one step, the mean over an epoch and over all workers; the two lists go together epoch by epoch:
    the step as it was then, and what of it is not communication.
    """

    method: Method
    step_times_s: list[float]
    compute_times_s: list[float]

    @property
    def step_time_s(self) -> float:
        """Return the median step of those epochs."""
        return statistics.median(self.step_times_s)

    @property
    def share(self) -> float:
        """Return the median share of a step spent in collectives, of 1."""
        pairs = zip(self.compute_times_s, self.step_times_s, strict=True)
        return 1 - statistics.median(compute / step for compute, step in pairs)
