"""What difference a machine can show, from the scatter between identical arms that took turns.

The estimand is the log ratio of two adjacent measurements, one pair a value; between identical arms it is zero, so all
that is seen is scatter. The difference told for n pairs is `analysis.stats.blocks.minimum_detectable_effect`: the
smallest true ratio that a two-sided paired t test at the 5 % level finds in 80 % of cases.

Sources: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences" (2nd ed. 1988), chapter 2. The bounds are
the chi-square interval of a standard deviation whose mean is known, here zero.

Not known here: whether another program scatters as the measured one does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, minimum_detectable_effect
from keras_matrix.analysis.surroundings.disturbance import percent

MIN_PAIRS = MIN_BLOCKS
PLANNED_PAIRS = (10, 30)


@dataclass(frozen=True, slots=True)
class Detectable:
    """The relative difference that `pairs` pairs can show: 0.03 is 3 %. The bounds are those of the scatter."""

    pairs: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Resolution:
    """The scatter of the log ratio of a pair, from so many pairs, and the differences it lets one see."""

    pairs: int
    scatter: float
    detectable: tuple[Detectable, ...]


def resolution(log_ratios: Sequence[float], planned: Sequence[int] = PLANNED_PAIRS) -> Resolution | None:
    """Return what identical arms' log ratios, one a pair, say of the machine; None below `MIN_PAIRS` pairs."""
    count = len(log_ratios)
    if count < MIN_PAIRS:
        return None
    scatter = math.sqrt(math.fsum(value * value for value in log_ratios) / count)
    return Resolution(count, scatter, tuple(_detectable(scatter, count, pairs) for pairs in planned))


def resolution_text(found: Resolution | None, pairs: int) -> str:
    """Return what difference the machine can show, from so many measured pairs, in one sentence."""
    if found is None:
        return f"no figure: of the {MIN_PAIRS} pairs it takes, {pairs} were measured"
    told = ", ".join(f"{percent(d.difference)} in {d.pairs} pairs" for d in found.detectable)
    return f"this machine can show a difference of {told}"


def _detectable(scatter: float, count: int, pairs: int) -> Detectable:
    from scipy.special import chdtri  # the inverse of the survival function; slow to import

    tail = (1 - CONFIDENCE) / 2
    scatters = (scatter * math.sqrt(count / chdtri(count, p)) for p in (tail, 1 - tail))
    low, high = (minimum_detectable_effect(bound, pairs) for bound in scatters)
    centre = minimum_detectable_effect(scatter, pairs)
    if centre is None or low is None or high is None:
        raise ValueError(f"pairs: at least {MIN_PAIRS} can be planned, got {pairs}")
    return Detectable(pairs, centre, low, high)
