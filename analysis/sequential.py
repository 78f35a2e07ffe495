"""When a comparison has seen enough blocks, and which comparison gets the next one.

The method is a group-sequential fixed-width interval: looks at set numbers of blocks (at most six), each with Student's
interval at its own confidence; it stops at the first look whose half-width is at most the target, or when the budget
is spent or no look is left. Stopping at a lucky, narrow moment makes plain 95 % intervals cover less; the looks'
confidences are calibrated so that the interval reported at the stopping time covers 95 % again, as nearly as can be
over all sizes of noise (`analysis.simulation.calibrate`; docs/statistics.md holds what was reached).

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

from analysis.statistics import CONFIDENCE, MIN_BLOCKS, Estimate, half_width, of_logs

PRECISION_TARGET = 0.03


class Why(StrEnum):
    """Why a comparison stops, or goes on."""

    FEW = "too few blocks"
    BETWEEN = "between two looks"
    WIDE = "wider than the target"
    PRECISE = "precise enough"
    BUDGET = "budget spent"
    LAST = "no look left"


@dataclass(frozen=True, slots=True)
class Looks:
    """At how many blocks one looks, and with which confidence each interval is made."""

    blocks: tuple[int, ...]
    confidences: tuple[float, ...]

    def confidence(self, count: int) -> float:
        """Return the confidence of an interval over `count` blocks: that of the last look at or before it."""
        return next(
            (c for at, c in zip(reversed(self.blocks), reversed(self.confidences), strict=True) if at <= count),
            self.confidences[0],
        )

    @classmethod
    def once(cls, count: int) -> Looks:
        """Return the schedule of a run whose number of blocks was fixed beforehand: one look, the plain interval."""
        return cls((count,), (CONFIDENCE,))

    def following(self, count: int) -> int | None:
        """Return the first look after `count` blocks; None after the last."""
        return next((at for at in self.blocks if at > count), None)

    def passed(self, count: int) -> int:
        """Return how many blocks the last look at or before `count` saw; 0 before the first."""
        return max((at for at in self.blocks if at <= count), default=0)


LOOKS = Looks((5, 8, 12, 18, 27, 40), (0.9511, 0.9793, 0.9794, 0.9832, 0.9755, 0.9530))


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
    if budget_spent:
        return Decision(True, estimate, Why.BUDGET)
    if count < MIN_BLOCKS or estimate is None or estimate.half_width is None:
        return Decision(False, estimate, Why.FEW)
    if count >= looks.blocks[-1]:
        return Decision(True, estimate, Why.LAST)
    if count not in looks.blocks:
        return Decision(False, estimate, Why.BETWEEN)
    precise = estimate.half_width <= math.log1p(target)
    return Decision(precise, estimate, Why.PRECISE if precise else Why.WIDE)


def allocate(
    states: Mapping[str, State], budget_s: float, target: float = PRECISION_TARGET, looks: Looks = LOOKS
) -> str | None:
    """Return the comparison that gets the next block; None when all are at their end or none fits the budget.

    First those on their way to the first look, cheapest first; then the one whose interval would narrow most, up to
    its next look, per second; a comparison whose interval holds a ratio that matters counts twice. Between two looks
    a comparison is judged by what its last look saw, so that choosing adds no look.
    """
    open_ = {
        name: state
        for name, state in states.items()
        if state.block_cost_s <= budget_s and not decide(state.logs, target, looks).stop
    }
    young = [name for name, state in open_.items() if len(state.logs) < looks.blocks[0]]
    if young:
        return min(young, key=lambda name: (len(states[name].logs), states[name].block_cost_s))
    return max(open_, key=lambda name: _gain_per_s(states[name], looks), default=None)


def _gain_per_s(state: State, looks: Looks) -> float:
    seen = looks.passed(len(state.logs))
    ahead = looks.following(seen)
    logs = state.logs[:seen]
    if ahead is None:
        return 0.0
    scatter, estimate = statistics.stdev(logs), of_logs(logs, looks.confidence(seen))
    narrowing = half_width(scatter, seen, looks.confidence(seen)) - half_width(scatter, ahead, looks.confidence(ahead))
    at_stake = estimate is not None and any(not estimate.excludes(ratio) for ratio in state.stakes)
    return narrowing * (2 if at_stake else 1) / ((ahead - seen) * state.block_cost_s)
