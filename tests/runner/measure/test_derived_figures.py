"""The runner computes every figure that follows from others itself, and refuses a result that states another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from keras_matrix.records.codec import dumps
from keras_matrix.records.epoch_figures import quantile
from keras_matrix.records.fc import spec
from keras_matrix.records.identity import cell_id
from keras_matrix.records.instruments.generation import Generation
from keras_matrix.records.schema import CellResult, Times
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.measure.judge import TOLERANCE, ResultRefused, accept, derived
from tests.conftest import make_settings
from tests.fakes.executor import FakeExecutor

# Every duration of an epoch differs, and the second length is one pass over the samples.
MEASURED = Times(
    first_step_time_s=1.0,
    calibration_time_s=0.25,
    discarded_epoch_times_s=[3.0],
    epoch_times_s=[1.0, 2.0, 4.5],
    short_epoch_times_s=[0.5, 0.75, 0.6],
)
EXPECTED = {
    "first_epoch_time_s": 3.0,
    "epoch_time_median_s": 2.0,
    "epoch_time_mean_s": 2.5,
    "epoch_time_p95_s": 4.25,
    "step_time_s": 0.025,
    "samples_per_s": 1280.0,
    "steps_per_s": 40.0,
    "short_epoch_steps": 32,
    "fixed_time_per_epoch_s": 0.6 - 32 * 1.4 / 68,
    "suite_total_time_s": 1.85,
}


def job_of(settings: Settings) -> Job:
    return Job("nonce", cell_id(settings), 0, 0, settings, 100, "/nowhere", [], None, None)


def result_of(settings: Settings, times: Times = MEASURED) -> CellResult:
    """Return the result of a process with 100 steps of 32 samples an epoch, whose figures follow from its epochs."""
    result = replace(FakeExecutor().result(job_of(settings)), times=times)
    found, problem = derived(result, settings)
    assert problem is None
    return replace(found, times=replace(found.times, training_time_s=11.0 + sum(times.short_epoch_times_s)))


def refusal(result: CellResult, settings: Settings) -> str:
    with pytest.raises(ResultRefused) as refused:
        accept(dumps(result).encode(), job_of(settings))
    return str(refused.value)


SETTINGS = make_settings(samples=1024, batch_size=32)
GOOD = result_of(SETTINGS)


def test_every_figure_of_the_epochs_has_the_value_computed_by_hand() -> None:
    found = accept(dumps(GOOD).encode(), job_of(SETTINGS)).times
    assert {name: getattr(found, name) for name in EXPECTED} == pytest.approx(EXPECTED, rel=1e-12)


@pytest.mark.parametrize("name", [*EXPECTED])
@pytest.mark.parametrize("change", [lambda value: 5e-11, lambda value: 2 * value + 1])
def test_figure_that_its_epochs_do_not_give_is_refused(name: str, change: Callable[[float], float]) -> None:
    value = change(EXPECTED[name])
    value = int(value) if name == "short_epoch_steps" else value
    text = refusal(replace(GOOD, times=replace(GOOD.times, **{name: value})), SETTINGS)
    assert text.startswith(f"bad_result: times.{name} is {value:.6g}, but its epochs give {EXPECTED[name]:.6g}")


def test_every_figure_of_times_is_measured_or_derived() -> None:
    """A new field of `Times` belongs to one of the two; 23 were known when this was written."""
    measured = {
        "import_time_s", "build_time_s", "trace_time_s", "compile_time_s", "first_step_time_s", "calibration_time_s",
        "discarded_epoch_times_s", "epoch_times_s", "short_epoch_times_s", "call_time_p50_s", "call_time_p99_s",
        "call_time_p50_interval_s", "call_time_p99_interval_s", "calls_before_time_s", "lead_times_s",
        "training_times_s", "lead_steps", "whole_epoch_steps",
    }  # fmt: skip
    names = {field.name for field in fields(Times)}
    assert len(names) >= 23
    assert names - measured == {
        *EXPECTED,
        "tokens_per_s",
        "training_time_s",
        "training_step_time_s",
        "epoch_end_time_s",
    }


def test_figure_that_a_process_leaves_out_is_the_runners_own() -> None:
    stated = replace(GOOD, times=replace(GOOD.times, step_time_s=None, samples_per_s=None))
    found = accept(dumps(stated).encode(), job_of(SETTINGS)).times
    assert (found.step_time_s, found.samples_per_s) == (0.025, 1280.0)


def test_a_figure_within_rounding_is_accepted_and_replaced() -> None:
    near = 0.025 * (1 + TOLERANCE / 10)
    stated = replace(GOOD, times=replace(GOOD.times, step_time_s=near))
    assert accept(dumps(stated).encode(), job_of(SETTINGS)).times.step_time_s == 0.025


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"training_time_s": 1.0}, "times.training_time_s is 1, less than its parts, 12.6"),
        ({"call_time_p50_s": 0.02, "call_time_p99_s": 0.01}, "times.call_time_p50_s is 0.02, but call_time_p99_s 0.01"),
        ({"call_time_p50_s": 0.051, "call_time_p99_s": 0.1}, "do not fit into its epochs of 100 calls"),
        ({"call_time_p50_s": 0.01, "call_time_p99_s": 4.6}, "do not fit into its epochs of 100 calls"),
        ({"call_time_p50_s": 0.2}, "do not fit into its epochs of 100 calls"),
        ({"call_time_p50_s": 0.02, "call_time_p50_interval_s": [0.021, 0.03]}, "does not contain it, 0.02"),
        ({"call_time_p99_interval_s": [0.021, 0.03], "call_time_p50_s": 0.02}, "does not contain it, None"),
        ({"discarded_epoch_times_s": [3.0, 1.0], "training_time_s": 20.0}, "it has 2 discarded epochs, not 1"),
    ],
)
def test_impossible_times_are_refused(changes: dict[str, Any], problem: str) -> None:
    assert problem in refusal(replace(GOOD, times=replace(GOOD.times, **changes)), SETTINGS)


def test_total_without_a_second_length_is_the_sum_of_its_parts() -> None:
    good = result_of(SETTINGS, replace(MEASURED, short_epoch_times_s=[]))
    times = replace(good.times, training_time_s=10.75)
    accept(dumps(replace(good, times=times)).encode(), job_of(SETTINGS))
    text = refusal(replace(good, times=replace(times, training_time_s=12.0)), SETTINGS)
    assert "times.training_time_s is 12, but its parts are 10.75" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"updates_per_step": 2.0}, "work.updates_per_step is 2.0, but the counts of its epochs give 1.0"),
        ({"samples_per_step": 1.0}, "work.samples_per_step is 1.0, but the counts of its epochs give 32.0"),
        ({"batches_drawn": 3}, "work.batches_drawn is 3, but the counts of its epochs give 400"),
        ({"skipped_updates": 3}, "work.skipped_updates is 3, but the counts of its epochs give 0"),
        ({"changed_variables": 3}, "3 of 2 trainable weights changed"),
    ],
)
def test_sum_that_differs_from_its_counts_is_refused(changes: dict[str, Any], problem: str) -> None:
    assert GOOD.work is not None
    assert problem in refusal(replace(GOOD, work=replace(GOOD.work, **changes)), SETTINGS)


def test_steps_of_an_epoch_are_those_that_were_counted() -> None:
    assert GOOD.resolved is not None
    more = replace(GOOD, resolved=replace(GOOD.resolved, steps_per_epoch=10**9))
    found = replace(more, times=derived(more, SETTINGS)[0].times)
    assert "it counts the work of 4 epochs of 100 steps, but reports 4 of 1000000000" in refusal(found, SETTINGS)


def test_losses_are_those_of_every_epoch() -> None:
    fewer = replace(GOOD, learning=replace(GOOD.learning, loss=[1.0]))
    assert "it has the losses of 1 epoch, not of 4" in refusal(fewer, SETTINGS)


def test_tokens_per_second_follow_from_the_samples() -> None:
    params = {"prompt_length": 8, "max_length": 24}
    settings = make_settings(phase="generate", params=params, samples=1024, batch_size=32)
    good = result_of(settings)
    assert good.times.tokens_per_s == pytest.approx(1280 * 16)
    text = refusal(replace(good, times=replace(good.times, tokens_per_s=1.0)), settings)
    assert "times.tokens_per_s is 1, but its epochs give 20480" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"own_prefill_time_s": 2.0, "own_time_to_first_token_s": 1.0}, "more than own_time_to_first_token_s, 1"),
        ({"own_token_time_p50_s": 2.0, "own_token_time_p99_s": 1.0}, "more than own_token_time_p99_s, 1"),
        ({"own_token_time_p50_s": 2.1, "own_token_time_mean_s": 1.0}, "is 2.1, but the mean is 1"),
        ({"read_weight_bytes": 101}, "generation.read_weight_bytes is 101, more than weight_bytes, 100"),
    ],
)
def test_part_of_a_language_models_figures_never_exceeds_its_whole(changes: dict[str, Any], problem: str) -> None:
    sizes = Generation(4, 8, 100, 90, 10)
    accept(dumps(replace(GOOD, generation=sizes)).encode(), job_of(SETTINGS))
    assert problem in refusal(replace(GOOD, generation=replace(sizes, **changes)), SETTINGS)


@pytest.mark.parametrize("name", ["flops_per_step", "formula_bytes_per_step", "counted_bytes_per_step"])
def test_figures_of_the_fc_modes_are_those_of_their_formulas(name: str) -> None:
    params = {"mode": "fc_data", "workers": 2, "level": 2, "weight_size": 8}
    settings = make_settings(workload=spec.WORKLOAD, params=params, samples=1024, batch_size=32)
    good = result_of(settings)
    assert good.parallel is not None
    accept(dumps(good).encode(), job_of(settings))
    changed = replace(good.parallel, **{name: getattr(good.parallel, name) + 1})
    assert "bad_result: " in refusal(replace(good, parallel=changed), settings)


def test_quantile_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 60):
        values = rng.random(count).tolist()
        for percent in (0, 1, 50, 95, 99, 100):
            assert quantile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-12)
