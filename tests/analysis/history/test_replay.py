"""Replays: the measured errors of the rule for change points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from keras_matrix.analysis.history.change_points import THRESHOLDS, USUAL_RUN_LENGTH, assess
from keras_matrix.analysis.history.replay import (
    Replays,
    _run_length,
    correlated,
    delay,
    heavy_tailed,
    normal,
    residuals,
    run_lengths,
    shuffled,
)
from tests.analysis.history.test_change_points import history
from tests.sessions import noisy

FEW = Replays(count=12, sessions=60)
USUAL = THRESHOLDS[USUAL_RUN_LENGTH]


def test_same_seed_gives_the_same_figures() -> None:
    first, second = (run_lengths(heavy_tailed(0.02), [2.5, 3.5], FEW) for _ in range(2))
    assert first == second
    assert first[0].alarms > first[1].alarms


def test_sessions_are_watched_until_the_alarm() -> None:
    (none,) = run_lengths(normal(0.02), [99.0], FEW)
    assert (none.mean, none.high, none.alarms, none.watched) == (None, None, 0, 12 * 60)
    (all_,) = run_lengths(normal(0.02), [0.0], FEW)
    # Six sessions are the fewest with two levels of three, and then there is always some evidence.
    assert (all_.alarms, all_.watched, all_.mean) == (12, 12 * 6, 6.0)


def test_interval_of_a_run_length_is_that_of_a_poisson_rate() -> None:
    found = _run_length(10, 1000)
    # Garwood's limits of a count of 10: 4.795 and 18.39.
    assert (found.low, found.high) == (pytest.approx(1000 / 18.39, rel=1e-3), pytest.approx(1000 / 4.795, rel=1e-3))
    assert _run_length(0, 1000).low == pytest.approx(1000 / 3.689, rel=1e-3)


def test_false_alarms_do_not_depend_on_the_scatter() -> None:
    quiet, loud = (run_lengths(normal(scatter), [3.0], FEW) for scatter in (0.02, 0.08))
    assert quiet == loud


def test_larger_shift_is_found_sooner() -> None:
    small, large = (delay(normal(0.02), shift, USUAL, FEW) for shift in (0.03, 0.20))
    assert large.median is not None
    assert large.median <= 4
    assert small.median is None or small.median > large.median
    assert large.share_found == 1.0


def test_large_shift_is_found_at_the_third_session_of_the_new_level() -> None:
    """Two sessions are too few for a level."""
    found = delay(normal(0.001), 1.0, USUAL, FEW)
    assert (found.median, found.p90, found.share_found, found.replays) == (3, 3, 1.0, 12)


def test_history_with_a_false_alarm_before_the_shift_is_excluded() -> None:
    assert delay(normal(0.02), 0.05, 0.0, FEW).replays == 0


def test_shift_of_zero_is_almost_never_found() -> None:
    found = delay(normal(0.02), 0.0, USUAL, FEW)
    assert (found.median, found.p90) == (None, None)
    assert found.share_found < 0.2


def test_correlated_sessions_raise_more_false_alarms() -> None:
    alone, alike = (run_lengths(draw, [3.0], FEW)[0].alarms for draw in (normal(0.02), correlated(0.02, 0.5)))
    assert alike > alone


@pytest.mark.parametrize("draw", [normal(0.02), heavy_tailed(0.02), correlated(0.02, 0.3)])
def test_models_have_the_requested_scatter(draw: object) -> None:
    values = draw(np.random.default_rng(0), 40_000)  # type: ignore[operator]
    assert float(np.std(values)) == pytest.approx(0.02, rel=0.05)


def test_shuffled_history_contains_its_own_values_only() -> None:
    values = shuffled([0.01, -0.02, 0.03])(np.random.default_rng(0), 500)
    assert set(values) == {0.01, -0.02, 0.03}


def test_residuals_are_taken_from_each_level_and_short_levels_are_left_out() -> None:
    one = assess(history([*noisy(1.0, 20), *noisy(1.2, 4, seed=5)]))
    found = residuals([one])
    assert len(found) == 20
    assert sum(found) == pytest.approx(0.0, abs=1e-9)
    assert float(np.std(found, ddof=0)) == pytest.approx(
        np.std([math.log(v) for v in noisy(1.0, 20)], ddof=1), rel=1e-6
    )
