"""Values that were measured at several equal machines: the machine is a fixed level of the statistics.

The model of a value, the log ratio of a block or the log step time of a process, is x = m + d + e: the mean m, the
deviation d of its machine (these sum to 0 over the machines), and noise e. The centre is the mean of the k machines'
means, each of the same weight, however many of the n values a machine has. Its variance is sum(s_j**2 / n_j) / k**2,
with the standard deviation s_j of each machine, since a slower one is often noisier, and Satterthwaite's degrees of
freedom. If a machine has a single value, noise is taken to have one variance at all machines: s_j is the standard
deviation pooled within them, with n - k degrees. Differences between the machines neither widen the interval nor count
as noise.

The inference is about these machines during this run, not about machines in general: the interval does not include the
variance between machines, which two or three of them cannot estimate. If they disagree about a ratio (the one-way F
test), their mean describes none of them, and a comparison has no verdict.

Guarantee: pure. No interval and no test below `LEAST_DEGREES` degrees of freedom, those of a mean of `MIN_BLOCKS`
values at one machine; for one machine everything equals Student's t of `analysis.stats.blocks`.

Sources: one-way layout with fixed effects, its pooled variance and F test: Montgomery, "Design and Analysis of
Experiments", 8th ed. (2013), ch. 3; the mean of strata and the degrees of freedom of its variance: Cochran, "Sampling
Techniques", 3rd ed. (1977), ch. 5, and Satterthwaite, Biometrics Bulletin 2 (1946) 110; why each level at which times
vary belongs in the model: Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import CONFIDENCE, MIN_BLOCKS, Estimate, detectable, t_quantile

LEAST_DEGREES = MIN_BLOCKS - 1
# Machines disagree about a ratio at this level of the F test.
DISAGREEMENT_LEVEL = 0.01
# Means that are nearer than this are equal: logarithms are rounded.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Levels:
    """The values by machine, as sums: the mean, number and variance of the values of each, and their pooled deviation.

    `scatter` is None if no machine has two values; the variance of a single value is None.
    """

    means: tuple[float, ...]
    counts: tuple[int, ...]
    variances: tuple[float | None, ...]
    scatter: float | None

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    @property
    def degrees(self) -> int:
        """The degrees of freedom of the pooled standard deviation."""
        return self.count - len(self.counts)

    @property
    def centre(self) -> float:
        """The mean of the machines' means."""
        return statistics.fmean(self.means)

    @property
    def error(self) -> float | None:
        """The standard error of the centre; None below `LEAST_DEGREES`."""
        if self.scatter is None or self.degrees < LEAST_DEGREES:
            return None
        return math.sqrt(math.fsum(self._shares)) / len(self.counts)

    @property
    def _shares(self) -> list[float]:
        """The variance of the mean of each machine."""
        own, pooled = [one for one in self.variances if one is not None], (self.scatter or 0.0) ** 2
        used = own if len(own) == len(self.counts) else [pooled] * len(self.counts)
        return [variance / count for variance, count in zip(used, self.counts, strict=True)]

    @property
    def error_degrees(self) -> float:
        """The degrees of freedom of the standard error."""
        shares = self._shares
        if None in self.variances:
            return self.degrees
        parts = math.fsum(share**2 / (count - 1) for share, count in zip(shares, self.counts, strict=True))
        return math.fsum(shares) ** 2 / parts if parts else self.degrees  # 0 without noise, or with almost none

    def estimate(self, confidence: float = CONFIDENCE) -> Estimate:
        """Return the exponential of the centre, a ratio or a geometric mean, with its interval if there is one."""
        centre, count, error = self.centre, self.count, self.error
        if error is None:
            return Estimate(math.exp(centre), None, None, count)
        half = t_quantile(self.error_degrees, confidence) * error
        return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), count)

    def p_value(self) -> float | None:
        """Return the two-sided p-value of Student's test that the centre is 0; None below `LEAST_DEGREES`."""
        from keras_matrix.analysis.stats.special import stdtr

        distance, error = abs(self.centre), self.error
        if error is None:
            return None
        if error == 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * stdtr(self.error_degrees, -distance / error))

    def disagreement(self) -> float | None:
        """Return the p-value of the F test that all machines have one mean; None for one, or below `LEAST_DEGREES`."""
        from keras_matrix.analysis.stats.special import fdtrc

        between = len(self.counts) - 1
        if self.scatter is None or self.degrees < LEAST_DEGREES or not between:
            return None
        if self.scatter == 0:
            return 1.0 if max(self.means) - min(self.means) < ROUNDING else 0.0
        own = list(zip(self.means, self.counts, strict=True))
        common = math.fsum(mean * count for mean, count in own) / self.count
        squares = math.fsum(count * (mean - common) ** 2 for mean, count in own)
        return float(fdtrc(between, self.degrees, squares / between / self.scatter**2))

    def smallest_difference(self, factor: float = 1.0) -> float | None:
        """Return the relative difference that would show with 80 % power; None below `LEAST_DEGREES`.

        `factor` multiplies the standard error: `sqrt(2)` for two cells with these values, unpaired.
        """
        return None if self.error is None else detectable(factor * self.error, max(1, int(self.error_degrees)))


def levels(values: Mapping[str, Sequence[float]]) -> Levels | None:
    """Return the levels of the values of each machine; None without values."""
    found = [list(own) for own in values.values() if own]
    if not found:
        return None
    means = [statistics.fmean(own) for own in found]
    # `statistics.variance` is exact, so that equal values have no scatter.
    variances = [statistics.variance(own) if len(own) > 1 else None for own in found]
    squares = math.fsum((len(own) - 1) * (one or 0.0) for own, one in zip(found, variances, strict=True))
    degrees = sum(map(len, found)) - len(found)
    scatter = math.sqrt(squares / degrees) if degrees else None
    return Levels(tuple(means), tuple(map(len, found)), tuple(variances), scatter)


def grouped(values: Sequence[float], machines: Sequence[str]) -> dict[str, list[float]]:
    """Return the values by machine; `machines` has the machine of each value."""
    found: dict[str, list[float]] = {}
    for value, machine in zip(values, machines, strict=True):
        found.setdefault(machine, []).append(value)
    return found
