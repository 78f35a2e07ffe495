"""Finds the first slow one of a sequence of versions, by measured trials of which each may be wrong or undecided.

The first version is the good end, the last the bad one. A search has three parts:

- the ends: the bad end must be slower than the good one, by the gate's sequential test, or there is nothing to find;
- steps: a candidate is measured in the same blocks as both ends. It is slow if its log step time is above the mean of
  theirs, fast if it is below: its ratio to the good end is above or below the square root of the total ratio;
- the confirmation: the found version against the version before it, and both ends again, all measured alternately.

Why the square root: if one version brought the complete change, the log step times of all candidates have one of two
values, and the mean is equally far from both, so that the smaller of both distances, which determines the number of
blocks, is as large as it can be. If several versions share the change, the answer is the one at which half of it is
exceeded; its size and share come from the confirmation. Measuring both ends in each block makes the limit follow the
machine: no earlier estimate of the total ratio enters it.

Like `git bisect skip`, a candidate that cannot be measured or stays undecided is left out, and the next nearest one is
tried. The answer is then a range if such candidates are at its edge.

Guarantee: each test is `analysis.regression.gate`'s, in both directions, at a level that all planned tests share, so
that all are right with a probability of at least 95 % (Bonferroni's inequality). The level covers a candidate exactly
at the limit; at the usual distance from it errors are far rarer (docs/bisect.md). Pure: `search` measures by a
function that it is given. Limits: the signed-rank test assumes that a block's deviations from the limit are symmetric;
a change that a later version repairs before the bad end is not found.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from keras_matrix.analysis.regression import gate
from keras_matrix.analysis.regression.gate import GATE_LOOKS, Rule, judge
from keras_matrix.analysis.stats.blocks import Estimate, half_width, of_logs
from keras_matrix.analysis.stats.sequential import Looks

ERROR = 0.05  # at most this probability that any test of a search is wrong
SPARE_STEPS = 2  # steps beyond those that a search without an undecided one needs
OTHER_TESTS = 3  # the ends, and the two of the confirmation
THRESHOLD = 0.02  # ends that differ by less are not searched between: the trials would need many blocks
# The first look is the earliest at which these levels can be met: 2**-9 < 5 % / 11 / 2.
LOOKS = Looks((9, 12, 18, 27, 40), (GATE_LOOKS.confidences[0],) * 5, GATE_LOOKS.p_factor)
GOOD, CANDIDATE, BAD, BEFORE, FOUND = "good", "candidate", "bad", "before", "found"

Contrast = Mapping[str, float]
"""The weight of each arm's log step time."""
TOTAL: Contrast = {BAD: 1.0, GOOD: -1.0}
TO_GOOD: Contrast = {CANDIDATE: 1.0, GOOD: -1.0}
TO_LIMIT: Contrast = {CANDIDATE: 1.0, GOOD: -0.5, BAD: -0.5}


class CandidateSide(StrEnum):
    """Where a candidate is."""

    FAST = "fast"
    SLOW = "slow"
    UNDECIDED = "undecided"
    UNUSABLE = "cannot be measured"


class SearchOutcome(StrEnum):
    """How a search ended."""

    FOUND = "found"
    RANGE = "within a range"
    NOT_CONFIRMED = "not confirmed"
    NOT_SLOWER = "the bad end is not slower"
    ENDS_UNDECIDED = "the ends are undecided"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Trial:
    """What is measured alternately: the positions of the versions by arm, and the contrasts that are tested.

    `shown` is the contrast whose ratio is reported.
    """

    arms: Mapping[str, int]
    tested: tuple[Contrast, ...]
    shown: Contrast

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """All contrasts, those that are tested first, each once."""
        return self.tested if self.shown in self.tested else (*self.tested, self.shown)


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """The measured logs of each contrast of a trial, one number a block; or the `reason` why there are none."""

    logs: tuple[tuple[float, ...], ...] = ()
    reason: str | None = None


Measure = Callable[[Trial, Rule], TrialAnswer]


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A tried candidate: its position, its side, its ratio to the good end, the blocks, and why it was left out."""

    position: int
    side: CandidateSide
    ratio: Estimate | None = None
    blocks: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result: the change is after version `last_good` and at the latest in `first_bad`.

    `size` is the ratio of the found version to the one before it, `total` that of the ends. `tests` is how many tests
    at `level` each have decided something. `smallest` is given if the ends differ by less, or not at all.
    """

    outcome: SearchOutcome
    last_good: int
    first_bad: int
    steps: tuple[TriedCandidate, ...] = ()
    total: Estimate | None = None
    size: Estimate | None = None
    tests: int = 0
    level: float = 0.0
    reason: str | None = None
    smallest: float | None = None

    @property
    def confidence(self) -> float:
        """The least probability that every test of the path is right."""
        return 1 - self.tests * self.level

    @property
    def share(self) -> float | None:
        """The share of the total change, on the logarithms, that the found version has."""
        if self.size is None or self.total is None or self.total.centre == 1:
            return None
        return math.log(self.size.centre) / math.log(self.total.centre)


@dataclass(slots=True)
class _Known:
    """What is known about the versions between the ends."""

    last_good: int
    first_bad: int
    left_out: set[int] = field(default_factory=set)

    def candidates(self) -> list[int]:
        return [position for position in range(self.last_good + 1, self.first_bad) if position not in self.left_out]

    def note(self, position: int, side: CandidateSide) -> None:
        if side is CandidateSide.FAST:
            self.last_good = position
        elif side is CandidateSide.SLOW:
            self.first_bad = position
        else:
            self.left_out.add(position)


def most_steps(count: int) -> int:
    """Return the most steps of a search among `count` versions, both ends included: no more than candidates."""
    return max(0, min(usual_steps(count) + SPARE_STEPS, count - 2))


def usual_steps(count: int) -> int:
    """Return the most steps of a search among `count` versions in which each step has decided."""
    return min(math.ceil(math.log2(max(1, count - 1))), max(0, count - 2))


def rule_for(count: int) -> Rule:
    """Return the rule of each test of a search among `count` versions, with an equal share of the error."""
    return Rule(threshold=0.0, level=ERROR / (most_steps(count) + OTHER_TESTS), looks=LOOKS, early_level=0.0)


def side_of(logs: Sequence[float], rule: Rule) -> CandidateSide:
    """Return whether the mean of these numbers is above 0 (slow) or below it (fast), by the gate's test."""
    if judge({"": logs}, rule)[""].outcome is gate.GateOutcome.REGRESSED:
        return CandidateSide.SLOW
    if judge({"": [-log for log in logs]}, rule)[""].outcome is gate.GateOutcome.REGRESSED:
        return CandidateSide.FAST
    return CandidateSide.UNDECIDED


def answered(trial: Trial, rule: Rule, logs: Sequence[Sequence[float]], smallest: float = THRESHOLD) -> str | None:
    """Return the sides that a trial has decided at a look, as a text; None if it must go on.

    A trial of the ends also stops if the bad one is slower by less than `smallest`, if at all.
    """
    if trial.tested == (TOTAL,) and is_small(logs[0], rule, smallest):
        return f"slower by less than {smallest:g}"
    sides = [side_of(trial_logs, rule) for trial_logs in logs[: len(trial.tested)]]
    return None if CandidateSide.UNDECIDED in sides else " and ".join(sides)


def is_small(logs: Sequence[float], rule: Rule, smallest: float) -> bool:
    """Return whether the mean of these numbers is shown to be a slowdown by less than `smallest`, or none."""
    return judge({"": logs}, Rule(smallest, rule.level, rule.looks))[""].outcome is gate.GateOutcome.NO_WORSE


def expected_blocks(ends: Sequence[float], rule: Rule) -> int | None:
    """Return the blocks of a usual step, from the logs of the ends; None if the most blocks would not decide it.

    The mean of both ends has half the variance of one, so that a step's numbers scatter by sqrt(3/4) of the ends'.
    """
    distance, scatter = abs(statistics.fmean(ends)) / 2, statistics.stdev(ends) * math.sqrt(0.75)
    looks = rule.looks
    return next(
        (
            block_count
            for block_count in looks.blocks
            if half_width(scatter, block_count, looks.confidence(block_count)) < distance
        ),
        None,
    )


def trial_of_ends(count: int) -> Trial:
    """Return the first trial of a search."""
    return Trial({GOOD: 0, BAD: count - 1}, (TOTAL,), TOTAL)


def trial_of(position: int, count: int) -> Trial:
    """Return the trial of a candidate."""
    return Trial({GOOD: 0, CANDIDATE: position, BAD: count - 1}, (TO_LIMIT,), TO_GOOD)


def confirmation(last_good: int, first_bad: int, count: int) -> Trial:
    """Return the last trial: a found version and the one before it, with the ends that are other versions."""
    arm_before = GOOD if last_good == 0 else BEFORE
    suspect = BAD if first_bad == count - 1 else FOUND
    one_step = {suspect: 1.0, arm_before: -1.0}
    arms = {GOOD: 0, arm_before: last_good, suspect: first_bad, BAD: count - 1}
    return Trial(arms, (one_step,) if one_step == TOTAL else (one_step, TOTAL), one_step)


def step_of(position: int, answer: TrialAnswer, rule: Rule) -> TriedCandidate:
    """Return what a trial says about its candidate."""
    if answer.reason is not None:
        return TriedCandidate(position, CandidateSide.UNUSABLE, reason=answer.reason)
    return TriedCandidate(position, side_of(answer.logs[0], rule), estimate(answer, -1, rule), len(answer.logs[0]))


def estimate(answer: TrialAnswer, contrast: int, rule: Rule) -> Estimate | None:
    """Return the ratio of one of a trial's contrasts, with its interval; None if it has no figures."""
    if not answer.logs:
        return None
    logs = answer.logs[contrast]
    return of_logs(logs, rule.looks.confidence(len(logs)))


def search(count: int, measure: Measure, smallest: float = THRESHOLD) -> Bisection:
    """Return the first slow one of `count` >= 2 versions, or the range that contains it.

    `measure` measures a trial, with looks as the rule says, until `answered`. Between ends that differ by less than
    `smallest` nothing is searched.
    """
    rule, bounds = rule_for(count), _Known(0, count - 1)
    ends = measure(trial_of_ends(count), rule)
    total = estimate(ends, 0, rule)
    if ends.reason is not None:
        return Bisection(SearchOutcome.NOT_MEASURED, 0, count - 1, reason=ends.reason)
    side = side_of(ends.logs[0], rule)
    if side is CandidateSide.FAST or is_small(ends.logs[0], rule, smallest):
        return Bisection(SearchOutcome.NOT_SLOWER, 0, count - 1, total=total, level=rule.level, smallest=smallest)
    if side is CandidateSide.UNDECIDED:
        return Bisection(SearchOutcome.ENDS_UNDECIDED, 0, count - 1, total=total, level=rule.level)
    steps: list[TriedCandidate] = []
    while (candidates := bounds.candidates()) and _measured(steps) < most_steps(count):
        position = candidates[len(candidates) // 2]
        step = step_of(position, measure(trial_of(position, count), rule), rule)
        bounds.note(position, step.side)
        steps.append(step)
    tests = 1 + sum(step.side in (CandidateSide.FAST, CandidateSide.SLOW) for step in steps)
    range_ = Bisection(
        SearchOutcome.RANGE, bounds.last_good, bounds.first_bad, tuple(steps), total, tests=tests, level=rule.level
    )
    return range_ if bounds.first_bad - bounds.last_good > 1 else _confirmed(range_, count, measure, rule)


def _measured(steps: Sequence[TriedCandidate]) -> int:
    return sum(step.side is not CandidateSide.UNUSABLE for step in steps)


def _confirmed(bisection: Bisection, count: int, measure: Measure, rule: Rule) -> Bisection:
    """Return the result of a search that has found one version, after its confirmation."""
    trial = confirmation(bisection.last_good, bisection.first_bad, count)
    answer = measure(trial, rule)
    sides = {side_of(logs, rule) for logs in answer.logs[: len(trial.tested)]}
    outcome = SearchOutcome.FOUND if sides == {CandidateSide.SLOW} else SearchOutcome.NOT_CONFIRMED
    return Bisection(
        outcome,
        bisection.last_good,
        bisection.first_bad,
        bisection.steps,
        estimate(answer, len(trial.tested) - 1, rule) or bisection.total,
        estimate(answer, 0, rule),
        bisection.tests + len(trial.tested),
        rule.level,
        answer.reason,
    )
