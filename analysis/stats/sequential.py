"""When a comparison has enough blocks, and which comparison gets the next one.

The method is a group-sequential fixed-width interval: looks at set numbers of blocks (at most six), each with Student's
interval at its own confidence; it stops at the first look whose half-width is at most the target, or when the budget
is spent or no look is left. Stopping at a lucky, narrow moment makes plain 95 % intervals cover less; the looks'
confidences are calibrated so that the interval reported at the stopping time covers 95 % again, as nearly as possible
over all sizes of noise (`lab/run statistics --calibrate`; docs/statistics.md states the result). They are valid for any
target: only the ratio of noise to target matters.

Guarantee: the rule uses the width only, never the side of the ratio, and only at the set looks; data between them
change nothing. Decisions are functions of the blocks alone.

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

from keras_matrix.analysis.stats.blocks import CONFIDENCE, Estimate, half_width, of_logs, t_quantile
from keras_matrix.analysis.stats.levels import grouped, levels

PRECISION_TARGET = 0.03


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
        return next((at for at in self.blocks if at > count), None)


# With doubled p-values, at most about 5 % of tables of equal backends name a fastest (simulated: docs/statistics.md).
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
    ahead = looks.following(len(state.logs)) or len(state.logs)
    return (ahead - len(state.logs)) * state.block_cost_s


def _gain_per_s(state: SequentialState, looks: Looks) -> float:
    count = len(state.logs)
    ahead = looks.following(count)
    estimate = _estimate(state.logs, state.machines, looks.confidence(count))
    if ahead is None or estimate is None:
        return 0.0
    if estimate.half_width is None:  # of several machines: the first interval is worth more than a narrower one
        return math.inf
    then = _half_width_at(state, ahead, looks.confidence(ahead))
    at_stake = any(not estimate.excludes(ratio) for ratio in state.stakes)
    return (estimate.half_width - then) * (2 if at_stake else 1) / time_to_look_s(state, looks)


def _estimate(logs: Sequence[float], machines: Sequence[str], confidence: float) -> Estimate | None:
    """Return the ratio of these blocks, with their machine as a level if there are several."""
    found = levels(grouped(logs, machines)) if len(set(machines)) > 1 else None
    return found.estimate(confidence) if found else of_logs(logs, confidence)


def _half_width_at(state: SequentialState, count: int, confidence: float) -> float:
    """Return the half-width after `count` blocks, if scatter and machines stay and each gets as many."""
    found = levels(grouped(state.logs, state.machines)) if len(set(state.machines)) > 1 else None
    if found is None or found.scatter is None:
        return half_width(statistics.stdev(state.logs), count, confidence)
    return t_quantile(max(1, count - len(found.counts)), confidence) * found.scatter / math.sqrt(count)
