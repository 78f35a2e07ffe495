"""The time that the collectives of a step of the FC modes take, as a cell measured it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# After everything timed: number of observed epochs, and the maximum duration of each if a step is shorter.
WATCHED_EPOCHS = 5
WATCHED_EPOCH_S = 0.3


class TimingMethod(StrEnum):
    """How the time of collectives was measured.

    TIMED: each collective is a call that was timed separately, with an idle device before and after it; this includes
    packing and waiting for the other workers, and nothing overlaps. PROFILED: they are parts of a compiled program,
    measured by the backend's own profiler; this includes packing, and waiting only within an operation.
    """

    TIMED = "timed"
    PROFILED = "profiled"


@dataclass(frozen=True, slots=True)
class Communication:
    """The time of the collectives of a step, in separate epochs after everything that is timed.

    Seconds of one step, the mean over an epoch and over all workers. Both lists have a value per epoch: the step, and
    its part without communication.
    """

    method: TimingMethod
    step_times_s: list[float]
    compute_times_s: list[float]

    @property
    def step_time_s(self) -> float:
        """Return the median step of those epochs."""
        import statistics  # slow, and few records of a table have these times

        return statistics.median(self.step_times_s)

    @property
    def share(self) -> float:
        """Return the median share of a step that is spent in collectives."""
        import statistics

        pairs = zip(self.compute_times_s, self.step_times_s, strict=True)
        return 1 - statistics.median(compute / step for compute, step in pairs)
