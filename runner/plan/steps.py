"""How many steps an epoch has if `steps_per_epoch` is "auto"."""

from __future__ import annotations

import math
from collections.abc import Iterable

TARGET_EPOCH_S = 0.5
# Calibrated step times scatter; without a margin half of all epochs would be shorter than the target.
TARGET_MARGIN = 1.1
# The share of a process's time limit that its epochs may fill: the start and the first step come in addition.
EPOCHS_SHARE = 0.5


def steps_for(step_times_s: Iterable[float], slowest_s: float = 0.0, limit_s: float = math.inf) -> int:
    """Return the smallest number of steps whose epoch lasts `TARGET_EPOCH_S` on every backend, at least 1. Pure.

    `step_times_s` has the shortest step of each backend. There are no more steps than fit into an epoch of `limit_s` of
    the slowest cell, whose step takes `slowest_s`: the epochs of fast backends are too short rather than none measured.
    """
    enough = max((math.ceil(TARGET_MARGIN * TARGET_EPOCH_S / seconds) for seconds in step_times_s), default=1)
    return enough if enough * slowest_s <= limit_s else max(1, math.floor(limit_s / slowest_s))


def longest_epoch_s(limits: Iterable[tuple[float, int]]) -> float:
    """Return the longest epoch for which each process has time, from its limit in seconds and its number of epochs."""
    return min((EPOCHS_SHARE * timeout_s / epochs for timeout_s, epochs in limits), default=math.inf)
