"""When a comparison has seen enough blocks, and which comparison gets the next one.

The method is a group-sequential fixed-width interval: looks at set numbers of blocks (at most six), each with Student's
interval at its own confidence; it stops at the first look whose half-width is at most the target, or when the budget
is spent or no look is left. Stopping at a lucky, narrow moment makes plain 95 % intervals cover less; the looks'
confidences are calibrated so that the interval reported at the stopping time covers 95 % again, as nearly as can be
over all sizes of noise (`ci/simulate --calibrate`; docs/statistics.md holds what was reached). They
hold for any target: only the ratio of noise to target matters.

Promise: the rule looks at the width only, never at the side of the ratio, and only at the set looks; what happens
between them changes nothing. Decisions are functions of the blocks alone.

Sources: Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the mean",
Ann. Math. Statist. 36 (1965); Stein, "A two-sample test for a linear hypothesis whose power is independent of the
variance", Ann. Math. Statist. 16 (1945); the idea of a level of its own for each of few looks: Pocock, "Group
sequential methods in the design and analysis of clinical trials", Biometrika 64 (1977).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate, half_width, of_logs

PRECISION_TARGET = 0.03


class Why(StrEnum):
    """Why a comparison stops, or goes on."""

    FEW = "too few blocks"
    BETWEEN = "between two looks"
    WIDE = "wider than the target"
    PRECISE = "precise enough"
    BUDGET = "budget spent"
    LAST = "no look left"
    NOTHING = "nothing measured"


@dataclass(frozen=True, slots=True)
class Looks:
    """At how many blocks one looks, how confident each interval is, and what p-values are multiplied by."""

    blocks: tuple[int, ...]
    confidences: tuple[float, ...]
    p_factor: float = 1.0

    def confidence(self, count: int) -> float:
        """Return the confidence of an interval over `count` blocks: of the look there, else of the last one.

        Elsewhere than at a look one ends for want of budget, whatever the width: that is what the last look is for.
        """
        return self.confidences[self.blocks.index(count) if count in self.blocks else -1]

    def following(self, count: int) -> int | None:
        """Return the first look after `count` blocks; None after the last."""
        return next((at for at in self.blocks if at > count), None)


# With p-values doubled, about 5 % at most of tables of equal backends name a fastest (simulated: docs/statistics.md).
LOOKS = Looks((5, 8, 12, 18, 27, 40), (0.9461, 0.9826, 0.9812, 0.9721, 0.9849, 0.9535), p_factor=2.0)
# A number of blocks fixed beforehand: no look but the last, the plain interval.
FIXED = Looks((), (CONFIDENCE,))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to stop, the interval as it stands (None without blocks), and why."""

    stop: bool
    estimate: Estimate | None
    why: Why


@dataclass(frozen=True, slots=True)
class State:
    """One comparison: its blocks so far, what a block costs, and which ratios would change what is said of it.

    `stakes` are the ratios that matter: 1 for "which is faster", 1 + threshold for a gate.
    """

    logs: tuple[float, ...]
    block_cost_s: float
    stakes: tuple[float, ...] = (1.0,)


def decide(logs: Sequence[float], target: float, looks: Looks = LOOKS, *, budget_spent: bool = False) -> Decision:
    """Return whether a comparison with these log ratios, one a block in their order, is at its end.

    `target` is the relative half-width asked for: 0.03 means 3 %. With `budget_spent` it stops wherever it is.
    """
    count = len(logs)
    estimate = of_logs(logs, looks.confidence(count))
    if count in looks.blocks[:-1] and estimate and (estimate.half_width or 0.0) <= math.log1p(target):
        return Decision(True, estimate, Why.PRECISE)
    if count >= looks.blocks[-1]:
        return Decision(True, estimate, Why.LAST)
    if budget_spent:
        return Decision(True, of_logs(logs, looks.confidences[-1]), Why.BUDGET)
    if count < looks.blocks[0]:
        return Decision(False, estimate, Why.FEW)
    return Decision(False, estimate, Why.WIDE if count in looks.blocks else Why.BETWEEN)


def allocate(
    states: Mapping[str, State], budget_s: float, target: float = PRECISION_TARGET, looks: Looks = LOOKS
) -> str | None:
    """Return the comparison that gets the next block; None when all are at their end or none fits the budget.

    Blocks are bought up to the next look, and begun only where the budget reaches it: an interval cut short between
    two looks covers a little less. First all go to their first look, in turn where the budget holds for all, else one
    after the other, the cheapest first. Then the one whose interval would narrow most per second up to its next look;
    one whose interval holds a ratio that matters counts twice. Between two looks nothing is chosen anew, so that
    choosing adds no look.
    """
    ways = {name: way_s(state, looks) for name, state in states.items() if not decide(state.logs, target, looks).stop}
    young = [name for name in ways if len(states[name].logs) < looks.blocks[0]]
    if young and sum(ways[name] for name in young) <= budget_s:
        return min(young, key=lambda name: (len(states[name].logs), states[name].block_cost_s))
    open_ = [name for name, cost_s in ways.items() if cost_s <= budget_s]
    begun = [name for name in open_ if len(states[name].logs) not in (0, *looks.blocks)]
    fresh = [name for name in open_ if name in young]
    if begun or fresh:
        return min(begun or fresh, key=lambda name: ways[name])
    return max(open_, key=lambda name: _gain_per_s(states[name], looks), default=None)


def way_s(state: State, looks: Looks) -> float:
    """Return the seconds that the blocks up to the comparison's next look cost."""
    ahead = looks.following(len(state.logs)) or len(state.logs)
    return (ahead - len(state.logs)) * state.block_cost_s


def _gain_per_s(state: State, looks: Looks) -> float:
    count = len(state.logs)
    ahead = looks.following(count)
    estimate = of_logs(state.logs, looks.confidence(count))
    if ahead is None or estimate is None or estimate.half_width is None:
        return 0.0
    then = half_width(statistics.stdev(state.logs), ahead, looks.confidence(ahead))
    at_stake = any(not estimate.excludes(ratio) for ratio in state.stakes)
    return (estimate.half_width - then) * (2 if at_stake else 1) / way_s(state, looks)
