"""What an epoch costs before its first step: the intercept of a line through the mean epochs of two lengths.

It is a small difference of two large times. Its interval is Welch's (1947) for a weighted difference of the two means,
over the epochs of the one process that measures both lengths: it says whether the epochs' scatter hides the value, not
how much processes differ.
"""

from __future__ import annotations

import math
import statistics

from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate, t_quantile
from keras_matrix.records.schema import Record


def fixed_time(record: Record) -> Estimate | None:
    """Return the seconds with their interval, None if the process did not measure them.

    Without two epochs of each length there is no interval.
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
    parts = [
        factor**2 * statistics.variance(epochs_s) / len(epochs_s)
        for factor, epochs_s in zip(factors, lengths, strict=True)
    ]
    total = sum(parts)
    if total == 0:
        return Estimate(value, value, value, 1)
    degrees = total**2 / sum(part**2 / (len(epochs_s) - 1) for part, epochs_s in zip(parts, lengths, strict=True))
    half = t_quantile(degrees, CONFIDENCE) * math.sqrt(total)
    return Estimate(value, value - half, value + half, 1)
