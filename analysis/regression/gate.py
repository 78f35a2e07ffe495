"""The gate's verdict on new against base over all comparisons of a run: regressed, no worse, or undecided.

- regressed: the interval of new / base is above 1 + threshold, and the comparison is a discovery among the run's at
  the gate's level; or it is called early, see below.
- no worse: the interval's upper end is within 1 + threshold (non-inferiority; a slowdown of the threshold itself passes
  in 2.5 % of comparisons).
- undecided: neither; the verdict estimates how many more blocks would decide it.
- not measured: there is no interval. That fails a gate: a benchmark that did not run has not passed.

Family control: Benjamini and Hochberg at 1 % over the run's comparisons. If nothing regressed, the probability that
any comparison of a run is called "regressed" is at most 1 %, whatever their number (BH controls the family-wise error
under the complete null); if many regressed, the test gains power, as it should.

The p-values are Wilcoxon's signed-rank ones, not Student's. Benchmark noise occurs as slow processes: with 3 in 10
processes slow, all five blocks of two equal arms favour the same one once in 1,225 comparisons; the scatter within
them is then tiny, and Student's test rejects. The randomised order makes each sign a fair coin toss when nothing
changed, so the signed-rank p-value is valid for any noise. The price: n blocks cannot give less than 2**-n, so a single
regression among 300 comparisons needs 18 blocks; until then it is `undecided`.

Repeated looks would spend the level more than once, so each look that could reject spends half of the remainder (after
Lan and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983)); looks too early to reject
spend nothing (Tarone, "A modified Bonferroni method for discrete data", Biometrics 46 (1990)).

A slowdown so large that no slow process explains it need not wait for that many signs: it is called early, at any
look, under an error budget of its own, `EARLY_LEVEL`. Its interval is that of the look, widened at the lower end by the
factor 2 between the slow and the fast processes of shared machines, as if every block had had a slow process in new and
a fast one in base; all of it must lie beyond the threshold. And Student's p-value beyond the threshold itself must be a
discovery among the run's comparisons at that level, of which each look spends half of the remainder. The widening makes
it hold for noise that is not normal: docs/lab/statistics.md simulates it on all of its noises.

Limit: it does not know whether base and new were measured alternately; without that a gate should not be used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from keras_matrix.analysis.stats.blocks import (
    MIN_BLOCKS,
    Estimate,
    adjusted_p_values,
    fewest,
    half_width,
    of_logs,
    p_value,
    signed_rank_p,
)
from keras_matrix.analysis.stats.sequential import LOOKS, Looks

LEVEL = 0.01
THRESHOLD = 0.05
# The share of runs without a regression in which any comparison may be called regressed early, in addition to `LEVEL`.
EARLY_LEVEL = 0.002
# How much longer a slow process may take than a fast one of the same cell: entire processes at half speed were seen.
SLOW_PROCESS = 2.0

# A gate may continue from look to look until it has decided, so a slowdown of the threshold itself has six chances to
# pass as no worse. Pocock's method (Biometrika 64 (1977)): one confidence for all looks, by simulation such that the
# six together let 2.5 % of such slowdowns pass (docs/lab/statistics.md).
GATE_LOOKS = Looks(LOOKS.blocks, (0.988,) * len(LOOKS.blocks), LOOKS.p_factor)


class GateOutcome(StrEnum):
    """The verdict of a gate on one comparison, or on a run."""

    REGRESSED = "regressed"
    NO_WORSE = "no worse"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Rule:
    """A gate's parameters: the tolerated slowdown, the false alarm rate per run, and the schedule of looks.

    The default looks are for comparisons that continue until decided; those stopped by their width have `LOOKS`, those
    of a number of blocks fixed in advance `FIXED`. `also` are regression kinds (`analysis.regression.regression_kinds`)
    that fail a run like slower steps; `level` is each figure's share of the rate, see `sharing`. `early_level` is the
    rate of early calls, in addition; 0 for no early calls.
    """

    threshold: float = THRESHOLD
    level: float = LEVEL
    looks: Looks = GATE_LOOKS
    also: tuple[str, ...] = ()
    early_level: float = EARLY_LEVEL


def sharing(rule: Rule, also: Collection[str], tested: int) -> Rule:
    """Return the rule that also fails on these kinds, with its level shared with the `tested` statistical ones."""
    return replace(rule, level=rule.level / (1 + tested), also=tuple(also))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one comparison. `adjusted_p` is over the run; None if not measured.

    `more_blocks` is how many further blocks would probably decide an undecided one; None if no number is known. Of a
    regression that was called `early`, `adjusted_p` is that of the early call.
    """

    outcome: GateOutcome
    estimate: Estimate | None
    adjusted_p: float | None
    more_blocks: int | None = None
    early: bool = False


def judge(comparisons: Mapping[str, Sequence[float]], rule: Rule = Rule()) -> dict[str, Verdict]:
    """Return the verdicts on the log ratios new / base, one a block, of each comparison."""
    measured_logs = {name: logs for name, logs in comparisons.items() if len(logs) >= MIN_BLOCKS}
    spent = [spent_p(logs, rule) for logs in measured_logs.values()]
    adjusted = dict(zip(measured_logs, adjusted_p_values(spent), strict=True))
    early_p_values = dict(
        zip(measured_logs, adjusted_p_values([early_p(logs, rule) for logs in measured_logs.values()]), strict=True)
    )
    verdicts = {}
    for name, logs in comparisons.items():
        if name not in measured_logs:
            verdicts[name] = Verdict(GateOutcome.NOT_MEASURED, of_logs(logs), None, MIN_BLOCKS - len(logs))
            continue
        verdict = _verdict(logs, adjusted[name], rule, len(measured_logs))
        is_early = verdict.outcome is GateOutcome.UNDECIDED and early_p_values[name] <= rule.early_level
        verdicts[name] = _called_early(verdict, early_p_values[name]) if is_early else verdict
    return verdicts


def spent_p(logs: Sequence[float], rule: Rule) -> float:
    """Return the signed-rank p-value beyond the threshold, divided by the share of the level its look may spend."""
    return spent(signed_rank_p(logs, math.log1p(rule.threshold)), len(logs), rule)


def spent(p: float, count: int, rule: Rule) -> float:
    """Return a p-value from `count` blocks, divided by the share of the level that their look may spend."""
    share = spending(count, rule)
    return min(1.0, p / share) if share else 1.0


def spending(count: int, rule: Rule) -> float:
    """Return the share of the level that may be spent at `count` blocks.

    A look is too early, and spends nothing, if even all blocks on one side, in all comparisons of a run, would not be a
    discovery.
    """
    return _share(count, rule.looks, lambda block_count, share: 2.0**-block_count <= rule.level * share)


def early_p(logs: Sequence[float], rule: Rule) -> float:
    """Return Student's one-sided p-value beyond the threshold, divided by the share of the early level of its look.

    1 if the interval, widened by a slow process, does not lie beyond the threshold.
    """
    estimate, p = of_logs(logs, rule.looks.confidence(len(logs))), p_value(logs, math.log1p(rule.threshold))
    if not rule.early_level or estimate is None or estimate.low is None or p is None:
        return 1.0
    if estimate.low <= (1 + rule.threshold) * SLOW_PROCESS:
        return 1.0
    return min(1.0, p / 2 / early_spending(len(logs), rule))


def early_spending(count: int, rule: Rule) -> float:
    """Return the share of the early level that may be spent at `count` blocks."""
    return _share(count, rule.looks, lambda block_count, share: True)


def _share(count: int, looks: Looks, is_able: Callable[[int, float], bool]) -> float:
    """Return the share of a level for `count` blocks: at a look half of the remainder.

    Elsewhere, and at the last look, it is the full remainder, as no look follows. `is_able` says whether this many
    blocks could reject with this share: others spend nothing.
    """
    remaining = 1.0
    for block_count in looks.blocks[:-1]:
        if block_count == count:
            return remaining / 2 if is_able(block_count, remaining / 2) else 0.0
        if block_count < count and is_able(block_count, remaining / 2):
            remaining /= 2
    return remaining if is_able(count, remaining) else 0.0


def overall(outcomes: Collection[GateOutcome]) -> GateOutcome:
    """Return a run's verdict: regressed if any comparison is, else not measured (as without any), else undecided."""
    for worst in (GateOutcome.REGRESSED, GateOutcome.NOT_MEASURED, GateOutcome.UNDECIDED):
        if worst in outcomes:
            return worst
    return GateOutcome.NO_WORSE if outcomes else GateOutcome.NOT_MEASURED


def outcome_of(
    estimate: Estimate | None, adjusted_p: float | None, tolerance: float, level: float
) -> GateOutcome | None:
    """Return the outcome of an interval and its adjusted p-value against a tolerance; None without an interval."""
    if estimate is None or estimate.bounds is None or adjusted_p is None:
        return None
    low, high = estimate.bounds
    if low > 1 + tolerance and adjusted_p <= level:
        return GateOutcome.REGRESSED
    return GateOutcome.NO_WORSE if high <= 1 + tolerance else GateOutcome.UNDECIDED


def _verdict(logs: Sequence[float], adjusted_p: float, rule: Rule, family: int) -> Verdict:
    estimate = of_logs(logs, rule.looks.confidence(len(logs)))
    outcome = outcome_of(estimate, adjusted_p, rule.threshold, rule.level)
    assert outcome is not None
    more_blocks = _more_blocks(logs, rule, family) if outcome is GateOutcome.UNDECIDED else None
    return Verdict(outcome, estimate, adjusted_p, more_blocks)


def _called_early(verdict: Verdict, early_p: float) -> Verdict:
    return replace(verdict, outcome=GateOutcome.REGRESSED, adjusted_p=early_p, more_blocks=None, early=True)


def _more_blocks(logs: Sequence[float], rule: Rule, family: int) -> int | None:
    """Return how many more blocks would leave the threshold outside the interval, if centre and scatter stay.

    A regression must also be a discovery: there are at least as many blocks as a single one among `family` needs.
    The result is rounded up to the next look.
    """
    distance = statistics.fmean(logs) - math.log1p(rule.threshold)
    scatter = statistics.stdev(logs)

    def enough(count: int) -> bool:
        if half_width(scatter, count, rule.looks.confidence(count)) >= abs(distance):
            return False
        return distance < 0 or 2.0**-count <= rule.level * spending(count, rule) / family

    fewest_blocks = fewest(enough) if distance else None
    if fewest_blocks is None:
        return None
    needed_blocks = max(fewest_blocks, len(logs) + 1)
    return next(
        (block_count for block_count in rule.looks.blocks if block_count >= needed_blocks), needed_blocks
    ) - len(logs)
