"""Outliers and drift of the epochs of one process; no epoch is dropped."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from scipy import stats

from keras_matrix.analysis.stats.processes import Drift, outliers, summarise_epochs, trend


def steady(count: int, scatter: float = 0.02) -> list[float]:
    generator = random.Random(3)
    return [generator.gauss(1.0, scatter) for _ in range(count)]


def test_outlier_is_reported_and_counted() -> None:
    times = [*steady(20), 9.0]
    found = summarise_epochs(times)
    assert found is not None
    assert (found.outliers, found.count) == ((20,), 21)


def test_normal_scatter_has_no_outlier() -> None:
    assert outliers(steady(1000)) == ()


def test_equal_times_have_only_distant_outliers() -> None:
    assert outliers([1.0] * 9 + [1.005]) == ()
    assert outliers([1.0] * 9 + [1.5]) == (9,)
    assert outliers([]) == ()


@pytest.mark.parametrize(("far", "found"), [(1.145, ()), (1.152, (21,))])
def test_outlier_is_beyond_ten_robust_deviations(far: float, found: tuple[int, ...]) -> None:
    """The median deviation is 0.01, so that ten robust ones are 0.148."""
    assert outliers([0.99, 1.0, 1.01] * 7 + [far]) == found


def test_advice_counts_the_epochs_that_were_discarded_already() -> None:
    times = [value * (1 + 2 * math.exp(-i)) for i, value in enumerate(steady(16, 0.03))]
    once, thrice = (summarise_epochs(times, discarded) for discarded in (1, 3))
    assert once is not None
    assert thrice is not None
    assert thrice.advised_discard == once.advised_discard + 2


def test_trend_is_mann_and_kendalls() -> None:
    times = [value + 0.001 * i for i, value in enumerate(steady(40))]
    found = trend(times)
    assert found is not None
    expected = stats.kendalltau(range(40), times, method="asymptotic").pvalue
    assert found.p_value == pytest.approx(expected, rel=0.1)  # ours has the correction for continuity
    slope = stats.theilslopes(times).slope
    assert found.change == pytest.approx(slope * 39 / statistics.median(times))


def test_ties_are_allowed_for() -> None:
    times = [round(value, 2) for value in steady(40)]
    found = trend(times)
    assert found is not None
    assert found.p_value == pytest.approx(stats.kendalltau(range(40), times).pvalue, rel=0.1)
    level = trend([1.0] * 40)
    assert level is not None
    assert (level.p_value, level.change) == (1.0, 0.0)


def test_few_epochs_have_no_trend() -> None:
    found = summarise_epochs([3.0, 2.0, 1.0])
    assert found is not None
    assert found.drift is None
    assert trend([3.0, 2.0, 1.0]) is None
    assert summarise_epochs([]) is None


def test_steady_process_is_steady() -> None:
    found = summarise_epochs(steady(200))
    assert found is not None
    assert found.drift is Drift.STEADY


def test_process_still_warming_up_gets_advice() -> None:
    times = [value * (1 + 2 * math.exp(-i)) for i, value in enumerate(steady(16, 0.03))]
    found = summarise_epochs(times)
    assert found is not None
    assert found.drift is Drift.WARMING
    assert 2 <= found.advised_discard <= 9


@pytest.mark.parametrize(("slope", "drift"), [(0.01, Drift.RISING), (-0.003, Drift.FALLING)])
def test_drift_over_the_full_life_is_not_warm_up(slope: float, drift: Drift) -> None:
    found = summarise_epochs([value + slope * i for i, value in enumerate(steady(200, 0.01))])
    assert found is not None
    assert found.drift is drift


def test_trend_too_small_to_matter_is_steady() -> None:
    times = [1 + 1e-6 * i for i in range(100)]
    found, small = summarise_epochs(times), trend(times)
    assert found is not None
    assert small is not None
    assert small.p_value < 1e-6
    assert found.drift is Drift.STEADY


def test_many_epochs_keep_their_trend() -> None:
    times = [value * (1 + 1e-5 * i) for i, value in enumerate(steady(20_000, 0.1))]
    found, rising = summarise_epochs(times), trend(times)
    assert found is not None
    assert found.drift is Drift.RISING
    assert rising is not None
    assert rising.change == pytest.approx(0.2 / 1.1, rel=0.1)
