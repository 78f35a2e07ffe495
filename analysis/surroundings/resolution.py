"""The smallest difference that a machine can show, from the scatter between alternating identical arms.

The estimand is the log ratio of two adjacent measurements, one value a pair; between identical arms it is zero, so all
variation is scatter. The difference for n pairs is `analysis.stats.blocks.minimum_detectable_effect`: the smallest true
ratio that a two-sided paired t test at the 5 % level finds in 80 % of cases.

Sources: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences" (2nd ed. 1988), chapter 2. The bounds are
the chi-square interval of a standard deviation whose mean is known, here zero.

Limit: another program may scatter differently from the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, minimum_detectable_effect
from keras_matrix.records.text import percentage

MIN_PAIRS = MIN_BLOCKS
PLANNED_PAIRS = (10, 30)


@dataclass(frozen=True, slots=True)
class Detectable:
    """The relative difference that `pairs` pairs can show: 0.03 is 3 %. The bounds follow from those of the scatter."""

    pairs: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Resolution:
    """The scatter of a pair's log ratio, estimated from `pairs` pairs, and the differences detectable with it."""

    pairs: int
    scatter: float
    detectable: tuple[Detectable, ...]


def resolution(log_ratios: Sequence[float], planned: Sequence[int] = PLANNED_PAIRS) -> Resolution | None:
    """Return the machine's resolution from the log ratios of identical arms, one a pair; None below `MIN_PAIRS`."""
    count = len(log_ratios)
    if count < MIN_PAIRS:
        return None
    scatter = math.sqrt(math.fsum(value * value for value in log_ratios) / count)
    return Resolution(count, scatter, tuple(_detectable(scatter, count, pairs) for pairs in planned))


def resolution_text(found: Resolution | None, pairs: int) -> str:
    """Return the detectable differences, from so many measured pairs, in one sentence."""
    if found is None:
        return f"no estimate: needs {MIN_PAIRS} pairs, got {pairs}"
    differences = ", ".join(f"{percentage(d.difference)} in {d.pairs} pairs" for d in found.detectable)
    return f"this machine can show a difference of {differences}"


def _detectable(scatter: float, count: int, pairs: int) -> Detectable:
    from keras_matrix.analysis.stats.special import chdtri  # the inverse of the survival function; slow to import

    tail = (1 - CONFIDENCE) / 2
    scatters = (scatter * math.sqrt(count / chdtri(count, p)) for p in (tail, 1 - tail))
    low, high = (minimum_detectable_effect(bound, pairs) for bound in scatters)
    centre = minimum_detectable_effect(scatter, pairs)
    if centre is None or low is None or high is None:
        raise ValueError(f"pairs: must be at least {MIN_PAIRS}, got {pairs}")
    return Detectable(pairs, centre, low, high)
