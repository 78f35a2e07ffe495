"""The communication share of a step, of the FC modes' workers and of a Keras workload's devices. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from keras_matrix.records.fc.communication import Communication, TimingMethod
from keras_matrix.records.text import percentage

# Their shares are not comparable (docs/devices.md).
HOW = {TimingMethod.TIMED: "each collective timed, with waiting", TimingMethod.PROFILED: "by the profiler"}


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The communication share of a step's time, in the epochs with timed collectives: medians over the repeats.

    Seconds; `share` is of 1, and negative if noise exceeds a difference.
    """

    method: TimingMethod
    step_time_s: float
    share: float

    @property
    def how(self) -> str:
        """How the share was measured, in a few words."""
        return HOW[self.method]

    @property
    def share_text(self) -> str:
        """The share as a percentage; below zero it is noise, whose value says nothing."""
        return percentage(self.share) if self.share >= 0 else "below 0 %"


def step_breakdown(measured: Iterable[Communication | None]) -> StepBreakdown | None:
    """Return the medians over the repeats in which collectives were timed; None if they were in none."""
    timed = [one for one in measured if one is not None]
    if not timed:
        return None
    step_time_s, share = (statistics.median(getattr(one, name) for one in timed) for name in ("step_time_s", "share"))
    return StepBreakdown(timed[0].method, step_time_s, share)
