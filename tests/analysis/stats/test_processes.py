"""The ratio of scatter, and the detection of two modes of processes."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from keras_matrix.analysis.stats.blocks import Method
from keras_matrix.analysis.stats.processes import modes, scatter_ratio


def processes(seed: int, count: int, scatter: float, centre: float = 1.0) -> list[float]:
    generator = random.Random(seed)
    return [centre * math.exp(generator.gauss(0, scatter)) for _ in range(count)]


def test_doubled_scatter_at_the_same_mean_is_detected() -> None:
    found = scatter_ratio(processes(1, 40, 0.10), processes(2, 40, 0.04))
    assert found is not None
    assert found.method is Method.BONETT
    assert found.low is not None
    assert found.low > 1


def test_swapping_the_cells_gives_the_reciprocal() -> None:
    first, second = processes(1, 12, 0.1), processes(2, 9, 0.05)
    there, back = scatter_ratio(first, second), scatter_ratio(second, first)
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert there.high is not None
    assert (back.low, back.centre, back.high) == pytest.approx((1 / there.high, 1 / there.centre, 1 / there.low))


def test_few_processes_have_a_ratio_of_scatter_but_no_interval() -> None:
    found = scatter_ratio(processes(1, 4, 0.1), processes(2, 9, 0.1))
    assert found is not None
    assert (found.low, found.high, found.count) == (None, None, 4)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
def test_no_scatter_has_no_ratio(values: list[float]) -> None:
    assert scatter_ratio(values, processes(1, 6, 0.1)) is None
    assert scatter_ratio(processes(1, 6, 0.1), values) is None


def test_interval_of_the_scatter_has_about_its_stated_coverage() -> None:
    held = 0
    for seed in range(1000):
        found = scatter_ratio(processes(2 * seed, 12, 0.1), processes(2 * seed + 1, 12, 0.1))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1 <= found.high
    assert 0.92 <= held / 1000 <= 0.98


def test_two_modes_of_processes_are_found_with_their_centres() -> None:
    found = modes([3.5, 7.0, 3.52, 3.49, 7.1, 3.51, 6.9, 3.5, 3.48, 3.5])
    assert found is not None
    assert (found.slow_count, found.count) == (3, 10)
    assert (found.fast, found.slow) == pytest.approx((3.5, 7.0), rel=0.01)
    assert found.p_value < 0.01


def test_one_slow_process_is_not_a_mode() -> None:
    assert modes([3.5, 7.0, 3.52, 3.49, 3.51, 3.5, 3.48, 3.5]) is None


def test_modes_one_per_cent_apart_are_ignored() -> None:
    assert modes([1.0, 1.01] * 10) is None


def test_too_few_processes_have_no_modes() -> None:
    assert modes([1.0, 1.0001, 2.0, 2.0001]) is None


def test_equal_processes_have_one_mode() -> None:
    assert modes([1.0] * 10) is None


@pytest.mark.parametrize("count", [5, 10, 30])
def test_one_mode_is_split_as_rarely_as_stated(count: int) -> None:
    found = sum(modes(processes(seed, count, 0.3)) is not None for seed in range(1000))
    assert found <= 25  # 1 % of 1000; 25 is beyond four standard errors


def test_wider_gaps_have_smaller_p_values() -> None:
    chances = [
        found.p_value
        for gap in (1.3, 1.6, 3.0)
        if (found := modes([v * f for v, f in zip(processes(4, 12, 0.05), [1, gap] * 6, strict=True)]))
    ]
    assert all(wider <= narrower for narrower, wider in pairwise(chances))
    assert len(chances) == 3
