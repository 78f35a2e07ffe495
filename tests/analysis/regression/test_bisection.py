"""A search finds the first slow version in few steps, skips what it cannot decide, and confirms both ends."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.regression.bisection import (
    BAD,
    BEFORE,
    ERROR,
    FOUND,
    GOOD,
    LOOKS,
    SPARE_STEPS,
    TOTAL,
    CandidateSide,
    SearchOutcome,
    Trial,
    TrialAnswer,
    answered,
    confirmation,
    expected_blocks,
    most_steps,
    rule_for,
    search,
    side_of,
    trial_of,
    trial_of_ends,
)
from keras_matrix.analysis.regression.gate import Rule

SLOWER = math.log(1.05)


@dataclass(slots=True)
class Versions:
    """Versions with exact step times; those in `unusable` cannot be measured, those in `noisy` stay undecided."""

    logs: list[float]
    unusable: Collection[int] = ()
    noisy: Collection[int] = ()
    trials: list[Trial] = field(default_factory=list)
    confirms: bool = True

    def measure(self, trial: Trial, rule: Rule) -> TrialAnswer:
        self.trials.append(trial)
        if broken := [position for position in trial.arms.values() if position in self.unusable]:
            return TrialAnswer(reason=f"{broken[0]} cannot be imported")
        signs = [1 if block % 2 else -1 for block in range(LOOKS.blocks[1])]
        noise = 1.0 if any(position in self.noisy for position in trial.arms.values()) else 0.0
        if not self.confirms and FOUND in trial.arms:
            noise = 1.0
        return TrialAnswer(
            tuple(
                tuple(sum(w * self.logs[trial.arms[arm]] for arm, w in one.items()) + noise * sign for sign in signs)
                for one in trial.contrasts
            )
        )


def stepped(count: int, first_slow: int, **changes: object) -> Versions:
    """Versions of which those from `first_slow` on are 5 % slower."""
    return Versions([SLOWER * (n >= first_slow) for n in range(count)], **changes)  # type: ignore[arg-type]


@given(st.data())
def test_any_position_is_found_within_the_logarithm_of_the_versions(data: st.DataObject) -> None:
    """Mutation: search() tries the last candidate instead of the middle one."""
    count = data.draw(st.integers(2, 300))
    first_slow = data.draw(st.integers(1, count - 1))
    found = search(count, stepped(count, first_slow).measure)
    assert (found.outcome, found.last_good, found.first_bad) == (SearchOutcome.FOUND, first_slow - 1, first_slow)
    assert len(found.steps) <= math.ceil(math.log2(count - 1))
    assert found.size is not None
    assert found.size.centre == pytest.approx(1.05)
    assert found.share == pytest.approx(1)


@given(st.data())
def test_versions_that_cannot_be_measured_cost_a_step_each_and_limit_the_answer_to_a_range(
    data: st.DataObject,
) -> None:
    """Mutation: _Known.note() ignores versions that are left out, or takes them as fast."""
    count = data.draw(st.integers(3, 60))
    first_slow = data.draw(st.integers(1, count - 1))
    unusable = data.draw(st.sets(st.integers(1, count - 2), max_size=8))
    found = search(count, stepped(count, first_slow, unusable=unusable).measure)
    skipped = [step for step in found.steps if step.side is CandidateSide.UNUSABLE]
    assert found.last_good < first_slow <= found.first_bad
    assert set(range(found.last_good + 1, found.first_bad)) <= unusable
    assert {step.position for step in skipped} <= unusable
    assert len(found.steps) <= math.ceil(math.log2(count - 1)) + len(skipped)
    assert (found.outcome is SearchOutcome.FOUND) == (found.first_bad - found.last_good == 1)
    assert all(step.reason == f"{step.position} cannot be imported" for step in skipped)


def test_undecided_version_is_skipped_and_the_nearest_one_is_tried() -> None:
    versions = stepped(9, 3, noisy=[4])
    found = search(9, versions.measure)
    assert [(step.position, step.side) for step in found.steps] == [
        (4, CandidateSide.UNDECIDED),
        (5, CandidateSide.SLOW),
        (2, CandidateSide.FAST),
        (3, CandidateSide.SLOW),
    ]
    assert (found.outcome, found.first_bad) == (SearchOutcome.FOUND, 3)


@pytest.mark.parametrize(("count", "most"), [(2, 0), (3, 1), (4, 2), (5, 3), (6, 4), (9, 5), (64, 8)])
def test_no_more_steps_are_planned_than_there_are_candidates(count: int, most: int) -> None:
    assert most_steps(count) == most
    assert rule_for(count).level == 0.05 / (most + 3)


def test_search_ends_with_a_range_after_the_most_steps() -> None:
    found = search(64, stepped(64, 40, noisy=range(1, 63)).measure)
    assert (found.outcome, found.last_good, found.first_bad) == (SearchOutcome.RANGE, 0, 63)
    assert len(found.steps) == most_steps(64) == 6 + SPARE_STEPS


def test_no_version_between_makes_the_bad_one_the_answer_after_its_confirmation() -> None:
    versions = stepped(2, 1)
    assert search(2, versions.measure).first_bad == 1
    assert [trial.arms for trial in versions.trials] == [{GOOD: 0, BAD: 1}] * 2


def test_found_version_and_both_ends_are_measured_again() -> None:
    versions = stepped(9, 5)
    found = search(9, versions.measure)
    assert versions.trials[0] == trial_of_ends(9)
    assert versions.trials[-1].arms == {GOOD: 0, BEFORE: 4, FOUND: 5, BAD: 8}
    assert found.tests == 1 + len(found.steps) + 2
    assert found.confidence == pytest.approx(1 - found.tests * rule_for(9).level)
    assert found.confidence >= 1 - ERROR


def test_version_that_is_not_confirmed_is_not_found() -> None:
    """Mutation: _confirmed() always returns FOUND."""
    found = search(9, stepped(9, 5, confirms=False).measure)
    assert (found.outcome, found.first_bad) == (SearchOutcome.NOT_CONFIRMED, 5)


@pytest.mark.parametrize("logs", [[0.0, 0.0, 0.0], [0.0, 0.0, -SLOWER]])
def test_ends_without_a_slowdown_are_not_searched_between(logs: list[float]) -> None:
    versions = Versions(logs)
    found = search(3, versions.measure)
    assert (found.outcome, len(versions.trials)) == (SearchOutcome.NOT_SLOWER, 1)
    assert found.total is not None


@pytest.mark.parametrize(("smallest", "outcome"), [(0.1, SearchOutcome.NOT_SLOWER), (0.02, SearchOutcome.FOUND)])
def test_ends_that_differ_by_less_than_asked_are_not_searched_between(smallest: float, outcome: SearchOutcome) -> None:
    """Mutation: search() asks only whether the bad end is slower."""
    versions = stepped(9, 5)
    found = search(9, versions.measure, smallest)
    assert found.outcome is outcome
    assert (len(versions.trials) == 1) == (outcome is SearchOutcome.NOT_SLOWER)


def test_ends_that_stay_undecided_are_neither_slower_nor_not() -> None:
    """Mutation: search() takes whatever is not shown to be slower as not slower."""
    found = search(9, stepped(9, 5, noisy=[8]).measure)
    assert (found.outcome, found.total is not None) == (SearchOutcome.ENDS_UNDECIDED, True)


def test_end_that_cannot_be_measured_is_reported_with_its_reason() -> None:
    found = search(3, stepped(3, 1, unusable=[2]).measure)
    assert (found.outcome, found.reason) == (SearchOutcome.NOT_MEASURED, "2 cannot be imported")


def test_shared_change_is_found_where_its_half_is_exceeded() -> None:
    """A third at version 2, two thirds at version 6: the answer is 6, with its share."""
    logs = [0.0, 0.0, *[SLOWER / 3] * 4, *[SLOWER] * 4]
    found = search(10, Versions(logs).measure)
    assert (found.first_bad, found.share) == (6, pytest.approx(2 / 3))


def test_candidate_is_judged_against_the_square_root_of_the_total_ratio() -> None:
    """Mutation: the limit is the good end instead of the mean of both."""
    (contrast,) = trial_of(1, 3).tested
    for share, expected in ((0.4, CandidateSide.FAST), (0.6, CandidateSide.SLOW)):
        times = {"good": 0.0, "candidate": share * SLOWER, "bad": SLOWER}
        number = sum(weight * times[arm] for arm, weight in contrast.items())
        assert side_of([number] * 9, rule_for(3)) is expected


def test_fewer_blocks_than_the_level_needs_decide_nothing() -> None:
    rule = rule_for(64)
    assert side_of([0.1] * 7, rule) is CandidateSide.UNDECIDED
    assert side_of([0.1] * 9, rule) is CandidateSide.SLOW
    assert side_of([-0.1] * 9, rule) is CandidateSide.FAST
    assert side_of([0.1] * 8 + [-0.001], rule) is CandidateSide.UNDECIDED


def test_ends_stop_early_if_the_slowdown_is_too_small_to_search() -> None:
    ends, rule = trial_of_ends(9), rule_for(9)
    logs = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.002, 0.0]
    assert answered(ends, rule, [logs]) == "slower by less than 0.02"
    assert answered(ends, rule, [logs], 0.0) is None
    assert answered(trial_of(1, 9), rule, [logs, logs]) is None
    slower = [SLOWER + log for log in logs]
    assert answered(ends, rule, [slower]) == "slow"
    assert answered(ends, rule, [slower], 0.1) == "slower by less than 0.1"


def test_confirmation_names_each_version_once() -> None:
    assert confirmation(0, 1, 2).arms == {GOOD: 0, BAD: 1}
    assert confirmation(0, 1, 2).tested == (TOTAL,)
    assert confirmation(0, 1, 5).tested == ({FOUND: 1.0, GOOD: -1.0}, TOTAL)
    assert confirmation(3, 4, 5).tested == ({BAD: 1.0, BEFORE: -1.0}, TOTAL)


@pytest.mark.parametrize(("scatter", "expected"), [(0.001, 9), (0.04, 18), (0.2, None)])
def test_blocks_of_a_step_are_expected_from_the_scatter_of_the_ends(scatter: float, expected: int | None) -> None:
    ends = [SLOWER + scatter * (1 if n % 2 else -1) for n in range(10)]
    assert expected_blocks(ends, rule_for(64)) == expected
