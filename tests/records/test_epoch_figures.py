"""The figures of epochs that were cut: a whole epoch follows from the parts of one that ended early."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.records.epoch_figures import EpochWork, parts_problem, whole_epochs_s, with_figures
from keras_matrix.records.schema import Times
from keras_matrix.records.settings import FIT

# Epochs of 100 steps: opening the source takes 0.5 s, a step 10 ms or 20 ms, the end of an epoch 2 s.
STEPS, OPENS_S, ENDS_S = 100, 0.5, 2.0
CUT = Times(
    discarded_epoch_times_s=[9.0],
    epoch_times_s=[OPENS_S + STEPS * step_s + ENDS_S for step_s in (0.01, 0.02)],
    lead_times_s=[OPENS_S + 10 * step_s for step_s in (0.01, 0.02)],
    training_times_s=[OPENS_S + STEPS * step_s for step_s in (0.01, 0.02)],
    lead_steps=10,
    whole_epoch_steps=1000,
)
WORK = EpochWork(steps=STEPS, samples_a_step=32, steps_of_pass=STEPS, steps_per_execution=1, phase=FIT)


def test_whole_epoch_has_the_beginning_and_the_end_once_and_all_of_its_steps() -> None:
    times = with_figures(CUT, WORK)
    assert whole_epochs_s(times, STEPS) == pytest.approx([12.5, 22.5])
    assert (times.epoch_time_mean_s, times.epoch_time_median_s) == (pytest.approx(17.5), pytest.approx(17.5))
    assert times.step_time_s == pytest.approx(17.5e-3)
    assert times.samples_per_s == pytest.approx(1000 * 32 / 17.5)
    assert times.training_step_time_s == pytest.approx(15e-3)
    assert times.epoch_end_time_s == pytest.approx(ENDS_S)
    assert times.suite_total_time_s is None, "an epoch that was cut is no pass over the samples"
    assert times.epoch_times_s == CUT.epoch_times_s, "what was measured stays"


def test_epoch_of_unknown_length_has_the_time_of_a_training_step_alone() -> None:
    times = with_figures(replace(CUT, whole_epoch_steps=None), WORK)
    assert (times.step_time_s, times.samples_per_s) == (pytest.approx(15e-3), pytest.approx(32 / 15e-3))
    assert (times.epoch_time_median_s, times.epoch_time_mean_s) == (None, None)


def test_epoch_that_was_cut_within_its_first_steps_has_their_mean() -> None:
    times = with_figures(replace(CUT, lead_steps=STEPS, lead_times_s=CUT.training_times_s), WORK)
    assert times.training_step_time_s == pytest.approx(20e-3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"whole_epoch_steps": None}, None),
        ({"lead_times_s": [], "training_times_s": [], "whole_epoch_steps": None}, None),
        ({"lead_times_s": [], "training_times_s": []}, "no epoch was cut, but it states the steps of whole ones"),
        ({"lead_times_s": [0.1]}, "it has the parts of other epochs than those that were measured"),
        ({"lead_times_s": [0.1, 9.0]}, "the parts of an epoch are longer than the epoch"),
        ({"lead_times_s": [0.0, 0.1]}, "the parts of an epoch are longer than the epoch"),
        ({"whole_epoch_steps": 99}, "an epoch of 99 steps was cut after 100, the first 10 apart"),
    ],
)
def test_parts_that_cannot_be_those_of_an_epoch_are_refused(changes: dict[str, object], problem: str | None) -> None:
    assert parts_problem(replace(CUT, **changes), STEPS) == problem  # type: ignore[arg-type]
