"""Decides when a comparison has enough blocks, and which comparison gets the next one.

The method is a group-sequential fixed-width interval: looks at set numbers of blocks (at most six), each with Student's
interval at its own confidence; it stops at the first look whose half-width is at most the target, or when the budget is
spent or no look is left. Stopping at a lucky, narrow moment makes plain 95 % intervals cover less; the looks'
confidences are calibrated so that the interval reported at the stopping time covers 95 % again, as nearly as possible
over all sizes of noise (`lab/run statistics --calibrate`; results: docs/lab/statistics.md). They are valid for any
target: only the ratio of noise to target matters.

Guarantee: the rule uses the width only, never the side of the ratio, and only at the set looks; data between them
change nothing. Decisions are functions of the blocks alone.

If blocks are measured at several equal machines, the machine is a level of the statistics (`Levels`).

Sources: Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the mean", Ann.
Math. Statist. 36 (1965); Stein, "A two-sample test for a linear hypothesis whose power is independent of the variance",
Ann. Math. Statist. 16 (1945); the idea of a level of its own for each of few looks: Pocock, "Group sequential methods
in the design and analysis of clinical trials", Biometrika 64 (1977).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.analysis.stats.blocks import (
    CONFIDENCE,
    MIN_BLOCKS,
    Estimate,
    detectable,
    half_width,
    of_logs,
    t_quantile,
)

PRECISION_TARGET = 0.03
LEAST_DEGREES = MIN_BLOCKS - 1
# Machines disagree about a ratio at this level of the F test.
DISAGREEMENT_LEVEL = 0.01
# Means that are nearer than this are equal: logarithms are rounded.
ROUNDING = 1e-12


class Why(StrEnum):
    """Why a comparison stops or continues."""

    FEW = "too few blocks"
    BETWEEN = "between two looks"
    WIDE = "wider than the target"
    PRECISE = "precise enough"
    BUDGET = "budget spent"
    LAST = "no look left"
    NOTHING = "nothing measured"


@dataclass(frozen=True, slots=True)
class Looks:
    """The numbers of blocks at the looks, the confidence of each interval, and the factor of p-values."""

    blocks: tuple[int, ...]
    confidences: tuple[float, ...]
    p_factor: float = 1.0

    def confidence(self, count: int) -> float:
        """Return the confidence of an interval over `count` blocks: of the look there, else of the last one.

        Between looks a comparison ends only because the budget is spent, whatever the width, as at the last look.
        """
        return self.confidences[self.blocks.index(count) if count in self.blocks else -1]

    def following(self, count: int) -> int | None:
        """Return the first look after `count` blocks; None after the last."""
        return next((block_count for block_count in self.blocks if block_count > count), None)


# With doubled p-values, at most about 5 % of tables of equal backends name a fastest (docs/lab/statistics.md).
LOOKS = Looks((5, 8, 12, 18, 27, 40), (0.9461, 0.9826, 0.9812, 0.9721, 0.9849, 0.9535), p_factor=2.0)
# A number of blocks fixed in advance: only the last look, with the plain interval.
FIXED = Looks((), (CONFIDENCE,))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to stop, the current interval (None without blocks), and why."""

    stop: bool
    estimate: Estimate | None
    why: Why


@dataclass(frozen=True, slots=True)
class SequentialState:
    """One comparison: its blocks so far, the cost of a block, and the ratios at which its verdict changes.

    `stakes` are these ratios: 1 for "which is faster", 1 + threshold for a gate. `machines` has the machine of each
    block if they may be at several; empty for one.
    """

    logs: tuple[float, ...]
    block_cost_s: float
    stakes: tuple[float, ...] = (1.0,)
    machines: tuple[str, ...] = ()


def decide(
    logs: Sequence[float],
    target: float,
    looks: Looks = LOOKS,
    *,
    budget_spent: bool = False,
    machines: Sequence[str] = (),
) -> Decision:
    """Return whether a comparison with these log ratios, one a block in their order, is complete.

    `target` is the requested relative half-width: 0.03 means 3 %. With `budget_spent` it stops at any block. `machines`
    has the machine of each block; empty for one machine.
    """
    count = len(logs)
    estimate = _estimate(logs, machines, looks.confidence(count))
    width = estimate.half_width if estimate else None
    if count in looks.blocks[:-1] and width is not None and width <= math.log1p(target):
        return Decision(True, estimate, Why.PRECISE)
    if count >= looks.blocks[-1]:
        return Decision(True, estimate, Why.LAST)
    if budget_spent:
        return Decision(True, _estimate(logs, machines, looks.confidences[-1]), Why.BUDGET)
    if count < looks.blocks[0]:
        return Decision(False, estimate, Why.FEW)
    return Decision(False, estimate, Why.WIDE if count in looks.blocks else Why.BETWEEN)


def allocate(
    states: Mapping[str, SequentialState], budget_s: float, target: float = PRECISION_TARGET, looks: Looks = LOOKS
) -> str | None:
    """Return the comparison that gets the next block; None if all are complete or no one fits the budget.

    Blocks are allocated up to the next look, and started only if the budget suffices for it: an interval that ends
    between two looks covers slightly less. First all comparisons get their first look, interleaved if the budget
    suffices for all, else one after the other, the cheapest first. Then the one whose interval would narrow most per
    second up to its next look; it counts twice if its interval includes a ratio at stake. Between two looks the choice
    does not change, so that choosing adds no look.
    """
    costs_s = {
        name: time_to_look_s(state, looks)
        for name, state in states.items()
        if not decide(state.logs, target, looks, machines=state.machines).stop
    }
    young = [name for name in costs_s if len(states[name].logs) < looks.blocks[0]]
    if young and sum(costs_s[name] for name in young) <= budget_s:
        return min(young, key=lambda name: (len(states[name].logs), states[name].block_cost_s))
    open_ = [name for name, cost_s in costs_s.items() if cost_s <= budget_s]
    begun = [name for name in open_ if len(states[name].logs) not in (0, *looks.blocks)]
    fresh = [name for name in open_ if name in young]
    if begun or fresh:
        return min(begun or fresh, key=lambda name: costs_s[name])
    return max(open_, key=lambda name: _gain_per_s(states[name], looks), default=None)


def time_to_look_s(state: SequentialState, looks: Looks) -> float:
    """Return the seconds of the blocks up to the comparison's next look."""
    next_look = looks.following(len(state.logs)) or len(state.logs)
    return (next_look - len(state.logs)) * state.block_cost_s


def _gain_per_s(state: SequentialState, looks: Looks) -> float:
    count = len(state.logs)
    next_look = looks.following(count)
    estimate = _estimate(state.logs, state.machines, looks.confidence(count))
    if next_look is None or estimate is None:
        return 0.0
    if estimate.half_width is None:  # of several machines: the first interval is worth more than a narrower one
        return math.inf
    next_half_width = _half_width_at(state, next_look, looks.confidence(next_look))
    is_at_stake = any(not estimate.excludes(ratio) for ratio in state.stakes)
    return (estimate.half_width - next_half_width) * (2 if is_at_stake else 1) / time_to_look_s(state, looks)


def _estimate(logs: Sequence[float], machines: Sequence[str], confidence: float) -> Estimate | None:
    """Return the ratio of these blocks, with their machine as a level if there are several."""
    machine_levels = levels(grouped(logs, machines)) if len(set(machines)) > 1 else None
    return machine_levels.estimate(confidence) if machine_levels else of_logs(logs, confidence)


def _half_width_at(state: SequentialState, count: int, confidence: float) -> float:
    """Return the half-width after `count` blocks, if scatter and machines stay and each gets as many."""
    machine_levels = levels(grouped(state.logs, state.machines)) if len(set(state.machines)) > 1 else None
    if machine_levels is None or machine_levels.scatter is None:
        return half_width(statistics.stdev(state.logs), count, confidence)
    return (
        t_quantile(max(1, count - len(machine_levels.counts)), confidence) * machine_levels.scatter / math.sqrt(count)
    )


@dataclass(frozen=True, slots=True)
class Levels:
    """The values by machine, as sums: the mean, number and variance of the values of each, and their pooled deviation.

    `scatter` is None if no machine has two values; the variance of a single value is None.

    A machine is a fixed level of the statistics. The model of a value, the log ratio of a block or the log step time of
    a process, is x = m + d + e: the mean m, the deviation d of its machine (these sum to 0 over the machines), and
    noise e. The centre is the mean of the k machines' means, each of the same weight, however many of the n values a
    machine has. Its variance is sum(s_j**2 / n_j) / k**2, with the standard deviation s_j of each machine, since a
    slower one is often noisier, and Satterthwaite's degrees of freedom. If a machine has a single value, noise is taken
    to have one variance at all machines: s_j is the standard deviation pooled within them, with n - k degrees.
    Differences between the machines neither widen the interval nor count as noise.

    The inference is about these machines during this run, not about machines in general: the interval does not include
    the variance between machines, which two or three of them cannot estimate. If they disagree about a ratio (the
    one-way F test), their mean describes none of them, and a comparison has no verdict.

    Guarantee: pure. No interval and no test below `LEAST_DEGREES` degrees of freedom, those of a mean of `MIN_BLOCKS`
    values at one machine; for one machine everything equals Student's t of `analysis.stats.blocks`.

    Sources: one-way layout with fixed effects, its pooled variance and F test: Montgomery, "Design and Analysis of
    Experiments", 8th ed. (2013), ch. 3; the mean of strata and the degrees of freedom of its variance: Cochran,
    "Sampling Techniques", 3rd ed. (1977), ch. 5, and Satterthwaite, Biometrics Bulletin 2 (1946) 110; why each level at
    which times vary belongs in the model: Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013.
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
        known_variances, pooled = (
            [variance for variance in self.variances if variance is not None],
            (self.scatter or 0.0) ** 2,
        )
        used_variances = known_variances if len(known_variances) == len(self.counts) else [pooled] * len(self.counts)
        return [variance / count for variance, count in zip(used_variances, self.counts, strict=True)]

    @property
    def error_degrees(self) -> float:
        """The degrees of freedom of the standard error."""
        shares = self._shares
        if None in self.variances:
            return self.degrees
        divisor = math.fsum(share**2 / (count - 1) for share, count in zip(shares, self.counts, strict=True))
        return math.fsum(shares) ** 2 / divisor if divisor else self.degrees  # 0 without noise, or with almost none

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

        degrees_between = len(self.counts) - 1
        if self.scatter is None or self.degrees < LEAST_DEGREES or not degrees_between:
            return None
        if self.scatter == 0:
            return 1.0 if max(self.means) - min(self.means) < ROUNDING else 0.0
        means_and_counts = list(zip(self.means, self.counts, strict=True))
        common = math.fsum(mean * count for mean, count in means_and_counts) / self.count
        squares = math.fsum(count * (mean - common) ** 2 for mean, count in means_and_counts)
        return float(fdtrc(degrees_between, self.degrees, squares / degrees_between / self.scatter**2))

    def smallest_difference(self, factor: float = 1.0) -> float | None:
        """Return the relative difference that would show with 80 % power; None below `LEAST_DEGREES`.

        `factor` multiplies the standard error: `sqrt(2)` for two cells with these values, unpaired.
        """
        return None if self.error is None else detectable(factor * self.error, max(1, int(self.error_degrees)))


def levels(values: Mapping[str, Sequence[float]]) -> Levels | None:
    """Return the levels of the values of each machine; None without values."""
    logs_of_machines = [list(machine_logs) for machine_logs in values.values() if machine_logs]
    if not logs_of_machines:
        return None
    means = [statistics.fmean(machine_logs) for machine_logs in logs_of_machines]
    # `statistics.variance` is exact, so that equal values have no scatter.
    variances = [
        statistics.variance(machine_logs) if len(machine_logs) > 1 else None for machine_logs in logs_of_machines
    ]
    squares = math.fsum(
        (len(machine_logs) - 1) * (variance or 0.0)
        for machine_logs, variance in zip(logs_of_machines, variances, strict=True)
    )
    degrees = sum(map(len, logs_of_machines)) - len(logs_of_machines)
    scatter = math.sqrt(squares / degrees) if degrees else None
    return Levels(tuple(means), tuple(map(len, logs_of_machines)), tuple(variances), scatter)


def grouped(values: Sequence[float], machines: Sequence[str]) -> dict[str, list[float]]:
    """Return the values by machine; `machines` has the machine of each value."""
    values_by_machine: dict[str, list[float]] = {}
    for value, machine in zip(values, machines, strict=True):
        values_by_machine.setdefault(machine, []).append(value)
    return values_by_machine
