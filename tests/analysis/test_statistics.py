"""Figures and intervals, against numbers from elsewhere."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from analysis.statistics import geometric, paired_ratio, smallest_difference, spread


def test_the_interval_is_students_on_the_logarithms() -> None:
    values = [1.0, 1.1, 1.3, 0.9]
    logs = [math.log(v) for v in values]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    found = geometric(values)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.centre == pytest.approx(math.prod(values) ** 0.25)


@pytest.mark.parametrize("count", [1, 2])
def test_few_processes_have_a_centre_but_no_interval(count: int) -> None:
    found = geometric([1.0, 2.0][:count])
    assert found is not None
    assert (found.low, found.high, found.count) == (None, None, count)


def test_no_process_has_nothing() -> None:
    assert geometric([]) is None
    assert spread([1.0]) is None
    assert smallest_difference([1.0, 1.1]) is None


def test_pairing_takes_out_what_a_block_did_to_both() -> None:
    blocks = {0: 1.0, 1: 5.0, 2: 0.3}
    found = paired_ratio({b: 2.0 * m for b, m in blocks.items()}, blocks)
    assert found is not None
    assert (found.centre, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_only_repeats_that_both_have_are_paired() -> None:
    found = paired_ratio({0: 2.0, 1: 2.0, 5: 100.0}, {0: 1.0, 1: 1.0, 6: 1e-3})
    assert found is not None
    assert (found.centre, found.count) == (pytest.approx(2.0), 2)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """2000 made-up cells of three processes each: 95 % coverage within the binomial's four standard errors."""
    generator = random.Random(1)
    covered = 0
    for _ in range(2000):
        found = geometric([math.exp(generator.gauss(0.0, 0.2)) for _ in range(3)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert abs(covered / 2000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_the_smallest_difference_is_the_half_width_between_two_such_cells() -> None:
    values = [1.0, 1.02, 0.98, 1.01, 0.99]
    scatter = spread(values)
    assert scatter is not None
    expected = math.expm1(stats.t.ppf(0.975, 8) * scatter * math.sqrt(2 / 5))
    assert smallest_difference(values) == pytest.approx(expected)
