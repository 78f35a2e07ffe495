"""The scatter of times: outliers and drift of one process's epochs, variance and slow modes of a cell's processes.

Guarantee: an outlier is reported and counted, never dropped. Mean, median and p95 over all measured epochs are in the
record; discarded epochs, such as the first, are not considered here.

Variance can get worse like any other figure: a change that keeps the mean and doubles the scatter is a regression.
Processes may also fall into two modes (3.5 and 7.0 ms were observed, each constant within a process): then no process
is near the mean, and a finding reports it. The cause is not known. Fewer than 5 processes give neither.

Also what an epoch costs before its first step (`fixed_time`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, Estimate, Method, t_quantile
from keras_matrix.records.schema import Record

if TYPE_CHECKING:
    import numpy

MODES_LEVEL = 0.01
NULL_RUNS = 10_000
NULL_SEED = 1958
# One process apart from all others is an outlier, not a mode.
LEAST_MODE = 2
# Modes closer than this do not matter, however clearly they are separated.
LEAST_GAP = 0.05
OUTLIER_MADS = 10 * 1.4826
# Distances below 1 % of the median are not outliers: a clock's coarse ticks can make the median deviation 0.
LEAST_DEVIATION = 0.01
TREND_LEVEL = 0.01
# A trend matters if, over the life of the process, it changes an epoch by more than this.
LEAST_TREND = 0.05
MIN_TREND_EPOCHS = 8
# Longer series are reduced to this many means of equal stretches: the number of pairs grows as the square.
TREND_STRETCHES = 256


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

    Source: Bonett, "Robust confidence interval for a ratio of standard deviations", Applied Psychological Measurement
    30 (2006).
    """
    first_logs, second_logs = ([math.log(value) for value in values] for values in (numerator, denominator))
    count = min(len(first_logs), len(second_logs))
    if count < 2 or not statistics.pvariance(first_logs) or not statistics.pvariance(second_logs):
        return None
    centre = statistics.stdev(first_logs) / statistics.stdev(second_logs)
    if count < MIN_BLOCKS:
        return Estimate(centre, None, None, count, Method.BONETT)
    from keras_matrix.analysis.stats.special import ndtri

    quantile = float(ndtri(0.5 + confidence / 2))
    factors = [len(logs) / (len(logs) - quantile) for logs in (first_logs, second_logs)]  # for small samples
    shift = math.log(factors[0] / factors[1])
    half = quantile * _error(first_logs, second_logs)
    low, high = (math.sqrt(math.exp(2 * math.log(centre) + shift + sign * half)) for sign in (-1, 1))
    return Estimate(centre, low, high, count, Method.BONETT)


def modes(values: Sequence[float]) -> Modes | None:
    """Return the two modes of these processes; None if one mode explains them, or below 5 values.

    The values are split in two with the least squares within, at least two on each side; the null is that split
    of normal values, simulated (10,000 runs, seeded), so heavy tails rather than modes can also cross the level.

    Source: the split in two is the least-squares one of Fisher, "On grouping for maximum homogeneity", JASA 53 (1958).
    """
    if len(values) < MIN_BLOCKS:
        return None
    import numpy as np

    ordered = np.sort(np.log(np.asarray(values, dtype=float)))
    share, position = (float(column[0]) for column in _best_split(ordered[np.newaxis, :]))
    fast, slow = ordered[: int(position)], ordered[int(position) :]
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


def _moment(values: Sequence[float], power: int, centre: float) -> float:
    return sum((value - centre) ** power for value in values)


def _trimmed_mean(values: Sequence[float]) -> float:
    cut = int(len(values) / (2 * math.sqrt(len(values) - 4)))
    ordered = sorted(values)
    return statistics.fmean(ordered[cut : len(ordered) - cut] or [statistics.median(ordered)])


@lru_cache(maxsize=64)
def _null_shares(count: int) -> numpy.ndarray[Any, Any]:
    import numpy as np

    drawn_rows = np.random.default_rng((NULL_SEED, count)).standard_normal((NULL_RUNS, count))
    shares, _ = _best_split(np.sort(drawn_rows, axis=1))
    return shares


def _best_split(ordered: numpy.ndarray[Any, Any]) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Return, for each sorted row, the largest share of its squares that a split explains, and its index."""
    import numpy as np

    centred = ordered - ordered.mean(axis=1, keepdims=True)
    count = ordered.shape[1]
    sizes = np.arange(LEAST_MODE, count - LEAST_MODE + 1)
    sums = np.cumsum(centred, axis=1)[:, sizes - 1]
    squares_between = sums**2 * (1 / sizes + 1 / (count - sizes))
    best_columns = squares_between.argmax(axis=1)
    total = (centred**2).sum(axis=1)
    return squares_between[np.arange(len(ordered)), best_columns] / np.where(total > 0, total, 1.0), sizes[best_columns]


class Drift(StrEnum):
    """The drift of the measured epochs over the life of a process."""

    STEADY = "steady"
    WARMING = "still warming up"
    FALLING = "getting faster"
    RISING = "getting slower"


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of a series: its p-value, and by how much of the median the line moves from end to end."""

    p_value: float
    change: float


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """The measured epochs of one process. `drift` is None for fewer than 8 of them."""

    count: int
    outliers: tuple[int, ...]
    drift: Drift | None
    advised_discard: int


def summarise_epochs(times: Sequence[float], discarded: int = 1) -> EpochSummary | None:
    """Return the summary of the measured epochs, None without any. `discarded` epochs had been removed before."""
    import numpy as np

    if not len(times):
        return None
    values = np.asarray(times, dtype=float)
    drift, more_epochs = _drift(values, trend(values))
    return EpochSummary(len(values), outliers(values), drift, advised_discard=discarded + more_epochs)


def outliers(times: Sequence[float] | numpy.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return the indices of the times further than ten robust standard deviations from the median.

    Source: hyperfine's rule (src/outlier_detection.rs); a robust standard deviation is 1.4826 median absolute
    deviations.
    """
    import numpy as np

    values = np.asarray(times, dtype=float)
    if not len(values):
        return ()
    median = statistics.median(values.tolist())  # NumPy's would import its masked arrays
    distances = np.abs(values - median)
    limit = max(OUTLIER_MADS * statistics.median(distances.tolist()), LEAST_DEVIATION * abs(median))
    return tuple(int(index) for index in np.flatnonzero(distances > limit))


def trend(times: Sequence[float] | numpy.ndarray[Any, Any]) -> Trend | None:
    """Return Mann and Kendall's trend of a series with its Theil-Sen line; None for fewer than 8 values.

    Ties count as neither up nor down, and their share of the variance is subtracted.

    Sources: the trend is Mann's ("Nonparametric tests against trend", Econometrica 13 (1945)) with Kendall's variance,
    its slope Theil's (1950) and Sen's ("Estimates of the regression coefficient based on Kendall's tau", JASA 63
    (1968)).
    """
    import numpy as np

    from keras_matrix.analysis.stats.special import ndtr

    values = np.asarray(times, dtype=float)
    if len(values) > TREND_STRETCHES:
        length = len(values) // TREND_STRETCHES
        # The remainder is dropped at the front: the end of a process is closer to its steady state.
        values = np.mean(values[-length * TREND_STRETCHES :].reshape(-1, length), axis=1)
    count = len(values)
    if count < MIN_TREND_EPOCHS:
        return None
    earlier_indices, later_indices = _pairs(count)
    steps = values[later_indices] - values[earlier_indices]
    score = float(np.sign(steps).sum())
    _, tied = np.unique(values, return_counts=True)
    variance = (_pairs_variance(count) - sum(_pairs_variance(int(group)) for group in tied)) / 18
    distance = max(abs(score) - 1, 0.0) / variance**0.5 if variance else 0.0
    slope = float(np.median(steps / (later_indices - earlier_indices)))
    return Trend(float(2 * ndtr(-distance)), slope * (count - 1) / float(np.median(values)))


@lru_cache(maxsize=8)
def _pairs(count: int) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
    """Return the indices of every pair, the earlier and the later, which all processes of a cell share."""
    import numpy as np

    earlier_indices, later_indices = np.triu_indices(count, 1)
    return earlier_indices, later_indices


def _pairs_variance(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def _matters(fitted_trend: Trend | None) -> bool:
    return fitted_trend is not None and fitted_trend.p_value < TREND_LEVEL and abs(fitted_trend.change) > LEAST_TREND


def _drift(values: numpy.ndarray[Any, Any], fitted_trend: Trend | None) -> tuple[Drift | None, int]:
    """Return the drift, and how many more epochs to discard: warming up is a fall that ends in the first half."""
    if fitted_trend is None:
        return None, 0
    if not _matters(fitted_trend):
        return Drift.STEADY, 0
    if fitted_trend.change > 0:
        return Drift.RISING, 0
    more_epochs = 1
    while len(values) - more_epochs >= max(MIN_TREND_EPOCHS, len(values) // 2):
        if not _matters(trend(values[more_epochs:])):
            return Drift.WARMING, more_epochs
        more_epochs *= 2
    return Drift.FALLING, 0


def fixed_time(record: Record) -> Estimate | None:
    """Return the seconds with their interval, None if the process did not measure them.

    Without two epochs of each length there is no interval.

    What an epoch costs before its first step is the intercept of a line through the mean epochs of two lengths: a small
    difference of two large times. Its interval is Welch's (1947) for a weighted difference of the two means, over the
    epochs of the one process that measures both lengths: it says whether the epochs' scatter hides the value, not how
    much processes differ.
    """
    times, resolved = record.times, record.resolved
    value, short = times.fixed_time_per_epoch_s, times.short_epoch_steps
    if value is None:
        return None
    steps = resolved.steps_per_epoch if resolved else None
    lengths = (times.short_epoch_times_s, times.epoch_times_s)
    if not steps or not short or short >= steps or min(map(len, lengths)) < 2:
        return Estimate(value, None, None, 1)
    factors = (steps / (steps - short), short / (steps - short))
    variances = [
        factor**2 * statistics.variance(epochs_s) / len(epochs_s)
        for factor, epochs_s in zip(factors, lengths, strict=True)
    ]
    total = sum(variances)
    if total == 0:
        return Estimate(value, value, value, 1)
    degrees = total**2 / sum(
        variance**2 / (len(epochs_s) - 1) for variance, epochs_s in zip(variances, lengths, strict=True)
    )
    half = t_quantile(degrees, CONFIDENCE) * math.sqrt(total)
    return Estimate(value, value - half, value + half, 1)
