"""Differences between the processes of a cell: the ratio of their variance to another cell's, and slow modes.

Variance can get worse like any other figure: a change that keeps the mean and doubles the scatter is a regression.
Processes may also fall into two modes (3.5 and 7.0 ms were observed, each constant within a process): then no process
is near the mean, and a finding reports it.

The cause is not known. Fewer than 5 processes give neither.

Sources: Bonett, "Robust confidence interval for a ratio of standard deviations", Applied Psychological Measurement 30
(2006); the split in two is the least-squares one of Fisher, "On grouping for maximum homogeneity", JASA 53 (1958).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, Estimate, Method

if TYPE_CHECKING:
    import numpy

MODES_LEVEL = 0.01
NULL_RUNS = 10_000
NULL_SEED = 1958
# One process apart from all others is an outlier, not a mode.
LEAST_MODE = 2
# Modes closer than this do not matter, however clearly they are separated.
LEAST_GAP = 0.05


@dataclass(frozen=True, slots=True)
class Modes:
    """Two modes of processes: their geometric means, in the unit given, and how many processes are slow.

    `p_value` is the probability that as many processes of one normal distribution split as clearly.
    """

    fast: float
    slow: float
    slow_count: int
    count: int
    p_value: float


def scatter_ratio(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """Return the ratio of two cells' scatter (standard deviation of the logarithms), with Bonett's interval.

    The values are positive figures, one a process. None if a cell has no scatter (fewer than 2 values, or all equal);
    no interval if one has fewer than `MIN_BLOCKS`.
    """
    first, second = ([math.log(value) for value in values] for values in (numerator, denominator))
    count = min(len(first), len(second))
    if count < 2 or not statistics.pvariance(first) or not statistics.pvariance(second):
        return None
    centre = statistics.stdev(first) / statistics.stdev(second)
    if count < MIN_BLOCKS:
        return Estimate(centre, None, None, count, Method.BONETT)
    from keras_matrix.analysis.stats.special import ndtri

    quantile = float(ndtri(0.5 + confidence / 2))
    factors = [len(logs) / (len(logs) - quantile) for logs in (first, second)]  # for small samples
    shift = math.log(factors[0] / factors[1])
    half = quantile * _error(first, second)
    low, high = (math.sqrt(math.exp(2 * math.log(centre) + shift + sign * half)) for sign in (-1, 1))
    return Estimate(centre, low, high, count, Method.BONETT)


def modes(values: Sequence[float]) -> Modes | None:
    """Return the two modes of these processes; None if one mode explains them, or below 5 values.

    The values are split in two with the least squares within, at least two on each side; the null is that split
    of normal values, simulated (10,000 runs, seeded), so heavy tails rather than modes can also cross the level.
    """
    if len(values) < MIN_BLOCKS:
        return None
    import numpy as np

    ordered = np.sort(np.log(np.asarray(values, dtype=float)))
    share, at = (float(found[0]) for found in _best_split(ordered[np.newaxis, :]))
    fast, slow = ordered[: int(at)], ordered[int(at) :]
    if slow.mean() - fast.mean() < math.log1p(LEAST_GAP):  # before the null is simulated
        return None
    # Phipson and Smyth (2010): a simulated p-value is never 0.
    chance = float((1 + np.sum(_null_shares(len(values)) >= share)) / (1 + NULL_RUNS))
    if chance > MODES_LEVEL:
        return None
    return Modes(math.exp(fast.mean()), math.exp(slow.mean()), len(slow), len(ordered), chance)


def _error(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Bonett's standard error of the log ratio of variances, by the pooled kurtosis about trimmed means."""
    fourth = sum(_moment(values, 4, _trimmed_mean(values)) for values in (first, second))
    squares = sum(_moment(values, 2, statistics.fmean(values)) for values in (first, second))
    kurtosis = (len(first) + len(second)) * fourth / squares**2
    return math.sqrt(sum(max(kurtosis - (n - 3) / n, 0) / (n - 1) for n in (len(first), len(second))))


def _moment(values: Sequence[float], power: int, about: float) -> float:
    return sum((value - about) ** power for value in values)


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = int(len(values) / (2 * math.sqrt(len(values) - 4)))
    ordered = sorted(values)
    return statistics.fmean(ordered[cut : len(ordered) - cut] or [statistics.median(ordered)])


@lru_cache(maxsize=64)
def _null_shares(count: int) -> numpy.ndarray[Any, Any]:
    import numpy as np

    made = np.random.default_rng((NULL_SEED, count)).standard_normal((NULL_RUNS, count))
    shares, _ = _best_split(np.sort(made, axis=1))
    return shares


def _best_split(ordered: numpy.ndarray[Any, Any]) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Return, for each sorted row, the largest share of its squares that a split explains, and its index."""
    import numpy as np

    centred = ordered - ordered.mean(axis=1, keepdims=True)
    count = ordered.shape[1]
    sizes = np.arange(LEAST_MODE, count - LEAST_MODE + 1)
    sums = np.cumsum(centred, axis=1)[:, sizes - 1]
    between = sums**2 * (1 / sizes + 1 / (count - sizes))
    best = between.argmax(axis=1)
    total = (centred**2).sum(axis=1)
    return between[np.arange(len(ordered)), best] / np.where(total > 0, total, 1.0), sizes[best]
