"""Figures from several processes of a cell, with their intervals.

The unit of evidence is the process: one figure each (its median kept epoch per step), never its epochs. Times are
compared by ratio, so all arithmetic is on logarithms: the centre is the geometric mean, the interval is Student's t
over the processes. Few processes give wide intervals, and one gives none; that is the honest answer.

Source of the interval: Student, "The probable error of a mean", Biometrika 6 (1908); quantiles: scipy.special.stdtrit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MIN_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A centre with its interval; `low` and `high` are None with fewer than `MIN_PROCESSES` values."""

    centre: float
    low: float | None
    high: float | None
    count: int


def geometric(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the geometric mean of positive values and its two-sided t interval; None for no values."""
    if not values:
        return None
    logs = [math.log(value) for value in values]
    centre = statistics.fmean(logs)
    half = _half_width(logs, confidence)
    if half is None:
        return Estimate(math.exp(centre), None, None, len(logs))
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(logs))


def paired_ratio(
    numerator: Mapping[int, float], denominator: Mapping[int, float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Return the ratio of two cells' figures, paired by block of repeats, with its interval.

    Both map a repeat to a positive figure; only repeats that both have count. Cells of one block ran close together, so
    pairing takes out what the machine did between blocks. None without a common repeat.
    """
    common = sorted(numerator.keys() & denominator.keys())
    return geometric([numerator[repeat] / denominator[repeat] for repeat in common], confidence)


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of the logarithms, about the coefficient of variation; None below two values."""
    return statistics.stdev(math.log(value) for value in values) if len(values) > 1 else None


def smallest_difference(values: Sequence[float], confidence: float = CONFIDENCE) -> float | None:
    """Return the relative difference that an interval over these processes would just separate from nothing.

    It is the half-width, as a ratio less one, of the interval for the ratio of two cells that both scatter like these
    values: t * s * sqrt(2 / n) on the logarithms. None below `MIN_PROCESSES` values.
    """
    scatter = spread(values)
    if scatter is None or len(values) < MIN_PROCESSES:
        return None
    return math.expm1(_t_quantile(2 * (len(values) - 1), confidence) * scatter * math.sqrt(2 / len(values)))


def _half_width(logs: Sequence[float], confidence: float) -> float | None:
    if len(logs) < MIN_PROCESSES:
        return None
    return _t_quantile(len(logs) - 1, confidence) * statistics.stdev(logs) / math.sqrt(len(logs))


def _t_quantile(degrees: int, confidence: float) -> float:
    from scipy.special import stdtrit  # the whole of scipy.stats takes ten times as long to import

    return float(stdtrit(degrees, 0.5 + confidence / 2))
