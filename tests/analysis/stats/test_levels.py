"""The machine is a level: closed forms, the coverage of the interval, and the test for disagreement."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.stats import blocks
from keras_matrix.analysis.stats.blocks import half_width, of_logs
from keras_matrix.analysis.stats.sequential import (
    DISAGREEMENT_LEVEL,
    LEAST_DEGREES,
    LOOKS,
    Levels,
    decide,
    grouped,
    levels,
)

HAND = {"a": [1.0, 3.0], "b": [4.0, 5.0, 6.0, 7.0]}
values = st.lists(st.floats(-1, 1), min_size=2, max_size=6)


def levels_of(**own: list[float]) -> Levels:
    found = levels(own)
    assert found is not None
    return found


def drawn(
    offsets: dict[str, float], counts: dict[str, int], noise: float, seed: int, runs: int
) -> Iterator[dict[str, list[float]]]:
    generator = random.Random(seed)
    for _ in range(runs):
        yield {name: [generator.gauss(offsets[name], noise) for _ in range(counts[name])] for name in offsets}


def test_centre_error_and_tests_of_hand_numbers() -> None:
    """Means 2 and 5.5, squares 2 and 5 within them; 26 in all, so that 49/3 are between the machines."""
    found = levels_of(**HAND)
    assert (found.count, found.degrees, found.centre) == (6, 4, 3.75)
    assert found.scatter == pytest.approx(math.sqrt(7 / 4))
    assert found.error == pytest.approx(math.sqrt(2 / 2 + 5 / 3 / 4) / 2)  # the variances are 2 and 5/3
    assert found.error_degrees == pytest.approx((1 + 5 / 12) ** 2 / (1 / 1 + (5 / 12) ** 2 / 3))
    estimate = found.estimate(0.95)
    assert estimate.bounds is not None
    half = 4.5340852 * 0.5951190  # the t quantile of 1.897 degrees, the error
    assert [math.log(end) for end in estimate.bounds] == pytest.approx([3.75 - half, 3.75 + half], rel=1e-6)
    assert found.p_value() == pytest.approx(0.0276, abs=1e-4)
    # Of two machines F is the square of the t of two samples, 3.5 / sqrt(7/4 * 3/4) = 3.0551, with four degrees.
    assert found.disagreement() == pytest.approx(0.0378, abs=1e-4)


def test_smallest_difference_is_that_of_the_error_with_its_degrees() -> None:
    one = levels_of(a=[0.0, 0.1, 0.0, 0.1, 0.05])
    assert one.smallest_difference() == pytest.approx(
        blocks.minimum_detectable_effect(statistics.stdev([0.0, 0.1, 0.0, 0.1, 0.05]), 5)
    )
    two = levels_of(a=[0.0, 0.1, 0.0, 0.1], b=[1.0, 1.1])
    assert two.smallest_difference() is not None
    assert (two.smallest_difference(2.0) or 0) > 1.9 * (two.smallest_difference() or 1)


@pytest.mark.parametrize(
    ("counts", "missing"), [((1, 1, 1, 1, 1), 4), ((3, 2), 1), ((4, 2), 0), ((1, 1, 5), 0), ((4,), 1), ((5,), 0)]
)
def test_interval_needs_four_more_values_than_machines(counts: tuple[int, ...], missing: int) -> None:
    found = levels({str(n): [0.1 * i for i in range(count)] for n, count in enumerate(counts)})
    assert found is not None
    assert max(0, LEAST_DEGREES - found.degrees) == missing
    assert (found.estimate().bounds is None) == (found.p_value() is None) == bool(missing)
    assert (found.disagreement() is None) == (bool(missing) or len(counts) == 1)


def test_without_values_there_are_no_levels() -> None:
    assert levels({}) is None
    assert levels({"a": []}) is None


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=12))
def test_one_machine_gives_students_interval(logs: list[float]) -> None:
    found, expected = levels_of(a=logs).estimate(0.9), of_logs(logs, 0.9)
    assert expected is not None
    assert found.bounds == pytest.approx(expected.bounds, rel=1e-9)
    assert (found.centre, found.count) == (pytest.approx(expected.centre), expected.count)


@given(values, values, values, st.floats(-3, 3))
def test_speed_of_a_machine_moves_the_centre_and_leaves_the_width(
    a: list[float], b: list[float], c: list[float], offset: float
) -> None:
    one, other = levels_of(a=a, b=b, c=c), levels_of(a=a, b=[value + offset for value in b], c=c)
    assert other.centre - one.centre == pytest.approx(offset / 3, abs=1e-9)
    assert other.scatter == pytest.approx(one.scatter, abs=1e-9)
    assert levels_of(c=c, a=a, b=b).error == pytest.approx(one.error)


def test_interval_covers_the_mean_of_the_machines_where_one_without_levels_does_not() -> None:
    """The second machine's ratio is 2 % larger, and it has most of the blocks: without levels it counts too much."""
    offsets, counts = {"a": -0.01, "b": 0.01}, {"a": 3, "b": 15}
    runs, covered, ignoring = 1000, 0, 0
    for own in drawn(offsets, counts, 0.01, seed=11, runs=runs):
        together = of_logs([value for several in own.values() for value in several])
        assert together is not None
        covered += not levels_of(**own).estimate().excludes(1.0)
        ignoring += not together.excludes(1.0)
    # Three standard errors of 1,000 runs at 95 % are 2.1 %.
    assert covered / runs == pytest.approx(0.95, abs=0.021)
    assert ignoring / runs < 0.6


def test_interval_covers_the_mean_if_the_machine_with_few_blocks_is_noisier() -> None:
    """With one variance for both, the interval would be half as wide, and cover 70 % of these cases."""
    generator, runs, covered = random.Random(7), 1000, 0
    for _ in range(runs):
        own = {"a": [generator.gauss(0, 0.03) for _ in range(3)], "b": [generator.gauss(0, 0.01) for _ in range(15)]}
        covered += not levels_of(**own).estimate().excludes(1.0)
    assert covered / runs == pytest.approx(0.95, abs=0.03)


def test_a_machine_with_a_single_block_has_the_variance_of_the_others() -> None:
    found = levels_of(a=[1.0], b=[4.0, 5.0, 6.0, 7.0, 8.0])
    assert found.error == pytest.approx(math.sqrt(2.5 * (1 + 1 / 5)) / 2)
    assert found.error_degrees == 4


def test_interval_of_step_times_is_not_widened_by_the_machines() -> None:
    offsets, counts = {"a": -0.2, "b": 0.0, "c": 0.2}, dict.fromkeys("abc", 4)
    runs, covered, widths = 1000, 0, []
    for own in drawn(offsets, counts, 0.01, seed=5, runs=runs):
        found = levels_of(**own).estimate()
        covered += not found.excludes(1.0)
        widths.append(found.half_width or 0.0)
    assert covered / runs == pytest.approx(0.95, abs=0.021)
    assert statistics.fmean(widths) == pytest.approx(half_width(0.01, 12), rel=0.1)


def test_interval_stopped_by_its_width_covers_the_mean_of_the_machines() -> None:
    runs, covered = 200, 0
    offsets, counts = {"a": -0.1, "b": 0.0, "c": 0.1}, dict.fromkeys("abc", 14)
    for noise in (0.01, 0.03, 0.05):
        for own in drawn(offsets, counts, noise, seed=8, runs=runs):
            logs, machines = [own["abc"[n % 3]][n // 3] for n in range(40)], ["abc"[n % 3] for n in range(40)]
            found = next(d for at in LOOKS.blocks if (d := decide(logs[:at], 0.03, machines=machines[:at])).stop)
            assert found.estimate is not None
            covered += not found.estimate.excludes(1.0)
    assert 0.94 < covered / (3 * runs) < 0.995


@pytest.mark.parametrize(("offset", "least", "most"), [(0.0, 0.002, 0.02), (0.04, 0.95, 1.0)])
def test_f_test_finds_an_injected_disagreement_and_rarely_another(offset: float, least: float, most: float) -> None:
    offsets, counts = {"a": 0.0, "b": 0.0, "c": offset}, dict.fromkeys("abc", 4)
    runs = 1000
    p_values = [levels_of(**own).disagreement() for own in drawn(offsets, counts, 0.01, seed=3, runs=runs)]
    found = sum(p is not None and p < DISAGREEMENT_LEVEL for p in p_values) / runs
    assert least <= found <= most


def test_values_without_scatter_agree_only_if_equal() -> None:
    assert levels_of(a=[0.1, 0.1, 0.1], b=[0.1, 0.1, 0.1]).disagreement() == 1.0
    assert levels_of(a=[0.1, 0.1, 0.1], b=[0.2, 0.2, 0.2]).disagreement() == 0.0
    assert levels_of(a=[0.0, 0.0, 0.0], b=[0.0, 0.0, 0.0]).p_value() == 1.0
    assert levels_of(a=[0.1, 0.1, 0.1], b=[0.1, 0.1, 0.1]).p_value() == 0.0


def test_values_are_grouped_by_machine_in_their_order() -> None:
    assert grouped([1.0, 2.0, 3.0], ["a", "b", "a"]) == {"a": [1.0, 3.0], "b": [2.0]}
