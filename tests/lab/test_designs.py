"""Interleaving and many processes have the effects that docs/lab/statistics.md states."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.statistics.designs import DRIFT, Machine, order_errors, ramp, smallest_detectable, step
from lab.statistics.noise import Array

RUNS = 2000


def still(generator: np.random.Generator, runs: int, slots: int) -> Array:
    return np.zeros((runs, slots))


@pytest.mark.parametrize("drift", [ramp, step])
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_interleaving_reduces_the_error_from_drift(drift: type, noise: float) -> None:
    assert order_errors(drift, noise, repeats=10, runs=RUNS, seed=1).gain >= 5


def test_order_does_not_matter_without_drift() -> None:
    assert order_errors(still, 0.03, repeats=10, runs=RUNS, seed=1).gain == pytest.approx(1.0, abs=0.1)


def test_error_of_a_ramp_in_order_is_half_of_it() -> None:
    found = order_errors(ramp, 1e-9, repeats=50, runs=100, seed=1)
    assert found.one_after_other == pytest.approx(math.log1p(DRIFT) / 2, rel=0.02)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_many_interleaved_processes_detect_a_third_of_the_difference_of_one_each(noise: float) -> None:
    found = smallest_detectable(Machine(noise, drift=DRIFT, budget_s=120.0), runs=RUNS, seed=1)
    assert found.share <= 1 / 3


def test_larger_budget_helps_many_processes_and_not_one_each() -> None:
    small, large = (smallest_detectable(Machine(0.1, 0.0, budget_s), RUNS, seed=1) for budget_s in (120.0, 300.0))
    assert large.blocks > small.blocks
    assert large.ours < 0.7 * small.ours
    assert large.theirs > 0.9 * small.theirs


def test_smallest_difference_matches_the_formula_for_normal_blocks() -> None:
    from keras_matrix.analysis.stats.blocks import minimum_detectable_effect

    found = smallest_detectable(Machine(0.1, 0.0, 120.0), runs=20_000, seed=1)
    expected = minimum_detectable_effect(math.sqrt(2) * math.hypot(0.1, 0.05), found.blocks)
    assert found.ours == pytest.approx(expected, rel=0.03)
