"""Estimates and intervals, against independent values."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from keras_matrix.analysis.stats.blocks import (
    MIN_BLOCKS,
    adjusted_p_values,
    blocks_needed,
    geometric,
    minimum_detectable_effect,
    of_logs,
    p_value,
    paired_logs,
    signed_rank_p,
    spread,
)

LOGS = [0.031, -0.012, 0.044, 0.020, 0.017, 0.052, 0.009, 0.038]
TIMES_S = st.floats(1e-6, 1e3)


def test_interval_is_students_on_the_logarithms() -> None:
    values = [1.0, 1.1, 1.3, 0.9, 1.05]
    logs = [math.log(v) for v in values]
    low, high = stats.t.interval(0.95, 4, loc=sum(logs) / 5, scale=stats.sem(logs))
    found = geometric(values)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.centre == pytest.approx(math.prod(values) ** 0.2)
    assert found.half_width == pytest.approx((high - low) / 2)


@pytest.mark.parametrize("count", range(1, MIN_BLOCKS))
def test_fewer_than_five_blocks_have_a_centre_but_no_interval(count: int) -> None:
    found = of_logs(LOGS[:count])
    assert found is not None
    assert (found.low, found.high, found.half_width, found.count) == (None, None, None, count)
    assert not found.excludes(100.0)
    assert p_value(LOGS[:count]) is None
    assert minimum_detectable_effect(0.1, count) is None


def test_no_blocks_give_no_estimate() -> None:
    assert geometric([]) is None
    assert of_logs([]) is None
    assert spread([1.0]) is None


def test_interval_excludes_values_outside_it() -> None:
    found = of_logs(LOGS)
    assert found is not None
    assert (found.excludes(1.0), found.excludes(found.centre)) == (True, False)


def test_pairing_removes_common_effects_of_a_block() -> None:
    blocks = {0: 1.0, 1: 5.0, 2: 0.3, 3: 0.9, 4: 2.0}
    found = of_logs(list(paired_logs({b: 2.0 * m for b, m in blocks.items()}, blocks).values()))
    assert found is not None
    assert (found.centre, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_only_blocks_that_both_have_are_paired() -> None:
    assert paired_logs({0: math.e, 1: 1.0, 5: 100.0}, {0: 1.0, 1: 1.0, 6: 1e-3}) == {0: 1.0, 1: 0.0}


@given(st.lists(st.tuples(TIMES_S, TIMES_S), min_size=1, max_size=12))
def test_swapping_the_arms_gives_the_reciprocal(pairs: list[tuple[float, float]]) -> None:
    first, second = ({i: pair[arm] for i, pair in enumerate(pairs)} for arm in (0, 1))
    there, back = (of_logs(list(paired_logs(*arms).values())) for arms in ((first, second), (second, first)))
    assert there is not None
    assert back is not None
    assert back.centre == pytest.approx(1 / there.centre)
    if there.low is None or there.high is None:
        assert (back.low, back.high) == (None, None)
    elif there.low > 0 and there.high < math.inf:
        assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low), rel=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=12), st.floats(0.1, 10))
def test_slowing_one_arm_scales_the_ratio(logs: list[float], factor: float) -> None:
    before, after = of_logs(logs), of_logs([log + math.log(factor) for log in logs])
    assert before is not None
    assert after is not None
    assert after.centre == pytest.approx(before.centre * factor)
    assert after.half_width == pytest.approx(before.half_width, abs=1e-9)


def test_p_value_is_students() -> None:
    assert p_value(LOGS) == pytest.approx(stats.ttest_1samp(LOGS, 0.0).pvalue)
    assert p_value(LOGS, 0.02) == pytest.approx(stats.ttest_1samp(LOGS, 0.02).pvalue)
    assert (p_value([0.0] * 5), p_value([0.1] * 5)) == (1.0, 0.0)


@pytest.mark.parametrize("count", [5, 8])
def test_signed_rank_p_value_is_wilcoxons(count: int) -> None:
    expected = stats.wilcoxon(LOGS[:count], alternative="greater", method="exact").pvalue
    assert signed_rank_p(LOGS[:count]) == pytest.approx(expected)


def test_equal_distances_share_their_rank() -> None:
    """By enumeration: of the 8 signs of ranks 1.5, 1.5, 3 three give a negative sum of at most 1.5."""
    assert signed_rank_p([0.1, -0.1, 0.5]) == pytest.approx(3 / 8)


def test_block_without_difference_counts_for_neither_side() -> None:
    """As with a coarse clock: equal values are not above."""
    assert signed_rank_p([0.0] * 5) == 1.0
    assert signed_rank_p([0.0, 0.1, 0.1, 0.1, 0.1]) == pytest.approx(2 / 32)


def test_many_blocks_are_counted_too() -> None:
    generator = random.Random(5)
    logs = [generator.gauss(0.03, 0.1) for _ in range(150)]
    expected = stats.wilcoxon(logs, alternative="greater", method="exact").pvalue
    assert signed_rank_p(logs) == pytest.approx(expected, rel=1e-9)


def test_n_blocks_on_one_side_have_the_smallest_p_value() -> None:
    assert [signed_rank_p([1e9] * n) for n in (1, 5, 8, 40)] == [0.5, 2.0**-5, 2.0**-8, 2.0**-40]


@pytest.mark.parametrize(("count", "power"), [(5, 0.8), (12, 0.9), (40, 0.8)])
def test_smallest_difference_has_the_power_it_states(count: int, power: float) -> None:
    effect = minimum_detectable_effect(0.05, count, power)
    assert effect is not None
    noncentrality = math.log1p(effect) / 0.05 * math.sqrt(count)
    limit = stats.t.ppf(0.975, count - 1)
    assert stats.nct.sf(limit, count - 1, noncentrality) == pytest.approx(power, abs=1e-6)


def test_as_many_blocks_as_needed_detect_it_and_one_fewer_does_not() -> None:
    needed = blocks_needed(0.05, 0.03)
    assert needed is not None
    before, at = (minimum_detectable_effect(0.05, count) for count in (needed - 1, needed))
    assert before is not None
    assert at is not None
    assert at <= 0.03 < before


def test_undetectable_difference_has_no_number_of_blocks() -> None:
    assert blocks_needed(1.0, 1e-6) is None
    assert blocks_needed(1e-6, 0.5) == MIN_BLOCKS


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_adjusted_p_values_are_benjamini_and_hochbergs(p_values: list[float]) -> None:
    assert adjusted_p_values(p_values) == pytest.approx(list(stats.false_discovery_control(p_values)))


def test_empty_p_values_give_no_adjusted_values() -> None:
    assert adjusted_p_values([]) == []
