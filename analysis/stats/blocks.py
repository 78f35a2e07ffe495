"""Comparison of two cells over blocks: ratio, interval, p-value, and the detectable difference.

The estimand is fixed: the log ratio of the mean step times of two cells, paired by block. A block is one repeat (one
process) of each arm, interleaved; its figure is one number, the log of the ratio of the two processes' mean step times.
Epochs are never the unit of evidence: adjacent epochs share a process, and a process can be slow as a unit.

Guarantee: no interval below `MIN_BLOCKS` blocks. A nominal 95 % percentile bootstrap of the median covers 51 % (two
blocks) and 75 % (three); Student's t over two or three is valid but too wide to be useful. Blocks without information
give `None`, never a zero.

Assumption: blocks are exchangeable. The order within a block must be drawn at random, and a slow mode of processes that
no block shows is not in any interval (docs/lab/statistics.md states the cost).

Sources: Student, "The probable error of a mean", Biometrika 6 (1908); Wilcoxon, "Individual comparisons by ranking
methods", Biometrics Bulletin 1 (1945); Benjamini and Hochberg, "Controlling the false discovery rate", J. R. Statist.
Soc. B 57 (1995).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy

CONFIDENCE = 0.95
MIN_BLOCKS = 5
MOST_BLOCKS = 10_000
POWER = 0.8
LEVEL = 0.05

Block = TypeVar("Block", bound=Hashable)


def median_of_known(values: Iterable[float | None]) -> float | None:
    """Return the median of a figure over the processes that have it; None if none has."""
    known_values = [value for value in values if value is not None]
    return statistics.median(known_values) if known_values else None


class Method(StrEnum):
    """The method of an interval."""

    STUDENT = "t"
    BONETT = "bonett"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A centre with its interval; `low` and `high` are None for too few values (`count`)."""

    centre: float
    low: float | None
    high: float | None
    count: int
    method: Method = Method.STUDENT

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The ends of the interval, None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """Return half the interval's width on the logarithms, about its relative half-width."""
        return math.log(self.bounds[1] / self.bounds[0]) / 2 if self.bounds else None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of this one times a positive number."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, centre=self.centre * factor, low=low, high=high)

    def excludes(self, value: float) -> bool:
        """Return whether the interval does not contain the value; False without an interval."""
        return self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]


def geometric(values: Sequence[float]) -> Estimate | None:
    """Return the geometric mean of positive values and its two-sided t interval; None for no values."""
    return of_logs([math.log(value) for value in values])


def paired_logs(numerator: Mapping[Block, float], denominator: Mapping[Block, float]) -> dict[Block, float]:
    """Return the log ratio of each block that both cells have, in the numerator's order.

    Both map a block to a positive figure. The cells of one block ran close together, so pairing removes variation of
    the machine between blocks.
    """
    return {
        block: math.log(value) - math.log(denominator[block])
        for block, value in numerator.items()
        if block in denominator
    }


def of_logs(logs: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the ratio whose logarithm, block by block, is `logs`; None for no block.

    Student's t assumes near-normal block figures; docs/lab/statistics.md simulates the effect of other distributions.
    """
    if not logs:
        return None
    centre = statistics.fmean(logs)
    half = half_width(statistics.stdev(logs), len(logs), confidence) if len(logs) >= MIN_BLOCKS else None
    if half is None:
        return Estimate(math.exp(centre), None, None, len(logs))
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(logs))


def arithmetic(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the mean of values of any sign, one per block, and its two-sided t interval; None for no values."""
    if not values:
        return None
    centre = statistics.fmean(values)
    if len(values) < MIN_BLOCKS:
        return Estimate(centre, None, None, len(values))
    half = half_width(statistics.stdev(values), len(values), confidence)
    return Estimate(centre, centre - half, centre + half, len(values))


def half_width(scatter: float, count: int, confidence: float = CONFIDENCE) -> float:
    """Return the half-width of Student's interval of a mean of `count` >= 2 values with this standard deviation."""
    return t_quantile(count - 1, confidence) * scatter / math.sqrt(count)


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of the logarithms, about the coefficient of variation; None below two values."""
    return statistics.stdev(math.log(value) for value in values) if len(values) > 1 else None


def p_value(logs: Sequence[float], centre: float = 0.0) -> float | None:
    """Return the two-sided p-value of Student's test that the mean is `centre`; None below `MIN_BLOCKS` blocks."""
    if len(logs) < MIN_BLOCKS:
        return None
    from keras_matrix.analysis.stats.special import stdtr

    distance, scatter = abs(statistics.fmean(logs) - centre), statistics.stdev(logs)
    if scatter == 0:
        return 1.0 if distance == 0 else 0.0
    return float(2 * stdtr(len(logs) - 1, -distance / scatter * math.sqrt(len(logs))))


def minimum_detectable_effect(scatter: float, count: int, power: float = POWER) -> float | None:
    """Return the relative difference that `count` blocks would show with probability `power`; None below `MIN_BLOCKS`.

    `scatter` is the standard deviation of the blocks' log ratios. For a single cell it is `sqrt(2)` times its own
    spread: two such cells, unpaired. Exact for normal blocks: the non-centrality at which a two-sided t test at
    `LEVEL` has this power (the far tail, below 1e-4 at usual powers, is neglected).
    """
    return None if count < MIN_BLOCKS else detectable(scatter / math.sqrt(count), count - 1, power)


def detectable(error: float, degrees: int, power: float = POWER) -> float:
    """Return the relative difference that shows with probability `power`.

    `error` is the standard error of the logarithm, known with these degrees of freedom.
    """
    return math.expm1(_noncentrality(degrees + 1, power) * error)


def blocks_needed(scatter: float, effect: float) -> int | None:
    """Return the fewest blocks that detect a relative difference of `effect` > 0; None above `MOST_BLOCKS`."""
    return fewest(lambda count: _noncentrality(count, POWER) * scatter / math.sqrt(count) <= math.log1p(effect))


def signed_rank_p(logs: Sequence[float], centre: float = 0.0) -> float:
    """Return Wilcoxon's one-sided p-value that the blocks are above `centre`, exact, given the ranks (ties share one).

    It assumes no distribution: if the order within each block was drawn at random and the two arms are equal, each sign
    is a fair coin toss. So it cannot fall below 2**-n, whatever the distance of the arms.
    """
    distances = [log - centre for log in logs]
    sizes = [abs(distance) for distance in distances]
    ranked_sizes = list(enumerate(sorted(sizes), 1))
    first_ranks = {size: rank for rank, size in reversed(ranked_sizes)}
    last_ranks = {size: rank for rank, size in ranked_sizes}
    # The ranks, as integers: equal sizes share their mean.
    doubled_ranks = [first_ranks[size] + last_ranks[size] for size in sizes]
    doubled_sum_below = sum(
        doubled_rank for doubled_rank, distance in zip(doubled_ranks, distances, strict=True) if distance <= 0
    )
    return float(signed_rank_chances(tuple(sorted(doubled_ranks)))[doubled_sum_below])


@lru_cache(maxsize=256)
def signed_rank_chances(ranks: tuple[int, ...]) -> numpy.ndarray[Any, Any]:
    """Return the probability that a random subset of the ranks sums to at most 0, 1, 2, ...

    Each rank is in the subset with probability one half: sums of positive numbers, so small probabilities are exact.
    """
    import numpy as np

    chances = np.array([1.0])
    for rank in ranks:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    total: numpy.ndarray[Any, Any] = np.cumsum(chances)
    return total


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Return Benjamini and Hochberg's adjusted p-values: reject those at most q, and the false share is at most q.

    If no effect is real, the probability of any rejection is at most q too.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index], reverse=True)
    adjusted, least = [0.0] * len(p_values), 1.0
    for place, index in enumerate(order):
        least = min(least, p_values[index] * len(p_values) / (len(p_values) - place))
        adjusted[index] = least
    return adjusted


@lru_cache(maxsize=4096)
def t_quantile(degrees: float, confidence: float) -> float:
    """Return the t quantile with probability `confidence` between itself and its negative."""
    from keras_matrix.analysis.stats.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def fewest(enough: Callable[[int], bool]) -> int | None:
    """Return the fewest blocks, from `MIN_BLOCKS` to `MOST_BLOCKS`, that are enough; None if `MOST_BLOCKS` are not."""
    if not enough(MOST_BLOCKS):
        return None
    low, high = MIN_BLOCKS - 1, MOST_BLOCKS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _noncentrality(count: int, power: float) -> float:
    from keras_matrix.analysis.stats.special import nctdtrinc

    return float(nctdtrinc(count - 1, 1 - power, t_quantile(count - 1, 1 - LEVEL)))
