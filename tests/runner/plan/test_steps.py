"""How many steps an epoch has if they are "auto"."""

from __future__ import annotations

import math

import pytest

from keras_matrix.runner.plan.plan import longest_epoch_s, steps_for


@pytest.mark.parametrize(("times_s", "steps"), [([0.1, 0.2], 6), ([], 1), ([2.0, 3.0], 1), ([0.0005], 1100)])
def test_backend_with_the_lowest_step_time_decides_the_steps(times_s: list[float], steps: int) -> None:
    assert steps_for(times_s) == steps


@pytest.mark.parametrize(("slowest_s", "limit_s", "steps"), [(0.4, 37.5, 93), (0.06, 37.5, 550), (50.0, 37.5, 1)])
def test_slowest_cell_limits_the_steps_to_what_its_time_limit_allows(
    slowest_s: float, limit_s: float, steps: int
) -> None:
    assert steps_for([0.001, 0.4], slowest_s, limit_s) == steps


def test_epochs_fill_half_of_the_shortest_time_limit() -> None:
    assert longest_epoch_s([(300.0, 4), (600.0, 4)]) == 37.5
    assert longest_epoch_s([]) == math.inf
