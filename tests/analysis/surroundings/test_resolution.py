"""The smallest difference that a machine can show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from keras_matrix.analysis.stats.blocks import LEVEL, POWER
from keras_matrix.analysis.surroundings.examination import MIN_PAIRS, Detectable, resolution, resolution_text


def detectable(log_ratios: list[float], pairs: int) -> Detectable:
    found = resolution(log_ratios, [pairs])
    assert found is not None
    return found.detectable[0]


@pytest.mark.parametrize("pairs", [5, 10, 30])
def test_true_difference_of_that_size_is_found_in_four_of_five_runs(pairs: int) -> None:
    runs, scatter = 20_000, 0.03
    drawn = np.random.default_rng(7)
    difference = detectable([scatter, -scatter] * 5, pairs).difference
    ratios = math.log1p(difference) + scatter * drawn.standard_normal((runs, pairs))
    t = ratios.mean(axis=1) / (ratios.std(axis=1, ddof=1) / math.sqrt(pairs))
    found = np.mean(np.abs(t) > stdtrit(pairs - 1, 1 - LEVEL / 2))
    assert found == pytest.approx(POWER, abs=0.01)


def test_bounds_cover_the_true_difference_in_95_of_100_machines() -> None:
    machines, scatter = 2_000, 0.03
    true = detectable([scatter, -scatter] * 5, 10).difference
    drawn = np.random.default_rng(11)
    intervals = [detectable(ratios.tolist(), 10) for ratios in scatter * drawn.standard_normal((machines, 8))]
    covered = sum(one.low <= true <= one.high for one in intervals)
    assert covered / machines == pytest.approx(0.95, abs=0.015)


def test_more_pairs_show_smaller_differences() -> None:
    found = resolution([0.01, -0.02, 0.005, 0.0, -0.01, 0.02])
    assert found is not None
    ten, thirty = found.detectable
    assert (ten.pairs, thirty.pairs) == (10, 30)
    assert thirty.difference < ten.difference
    assert ten.low < ten.difference < ten.high


def test_shift_between_identical_arms_counts_as_scatter() -> None:
    found = resolution([0.02] * 6)
    assert found is not None
    assert found.scatter == pytest.approx(0.02)


def test_fewer_than_five_pairs_give_no_estimate() -> None:
    assert resolution([0.01] * (MIN_PAIRS - 1)) is None
    assert resolution_text(None, 4) == "no estimate: needs 5 pairs, got 4"


def test_planning_fewer_than_five_pairs_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be at least 5, got 4"):
        resolution([0.01] * 6, [4])


def test_text_names_difference_and_pairs() -> None:
    found = resolution([0.01, -0.01] * 5)
    assert resolution_text(found, 10) == "this machine can show a difference of 1.0 % in 10 pairs, 0.53 % in 30 pairs"
