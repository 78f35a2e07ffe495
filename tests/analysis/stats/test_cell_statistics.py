"""The list of statistics: unique names and labels, and a value only if measured."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.stats.cell_statistics import STATISTICS, Hidden, hidden, values
from keras_matrix.records.schema import Record, Resolved, Status, Times
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import make_record


def process(step_time_s: float, repeat: int) -> Record:
    record = make_record(step_time_s, repeat)
    return replace(
        record, times=replace(record.times, epoch_time_median_s=50 * step_time_s, epoch_time_p95_s=60 * step_time_s)
    )


def test_metrics_and_labels_are_unique() -> None:
    assert len({one.metric for one in STATISTICS}) == len({one.label for one in STATISTICS}) == len(STATISTICS)


def test_median_and_p95_are_those_of_processes_and_of_epochs() -> None:
    found = values(summarise([process(step_s, repeat) for repeat, step_s in enumerate([0.010, 0.012, 0.020])]))
    assert found["times.step_time_s.median"] == pytest.approx(0.012)
    assert found["times.step_time_s.p95"] == pytest.approx(0.0192)
    assert found["times.step_time_s.epochs.median"] == pytest.approx(0.012)
    assert found["times.step_time_s.epochs.p95"] == pytest.approx(0.0144)


def test_percentile_of_one_value_is_not_shown() -> None:
    several = [process(0.01, repeat) for repeat in range(3)]
    single = [replace(one, times=replace(one.times, epoch_times_s=[0.5], call_time_p99_s=0.5)) for one in several]
    shown = values(summarise(single))
    assert not [metric for metric in shown if ".epochs." in metric or metric.endswith(".variation")]
    assert shown["times.step_time_s.median"] == pytest.approx(0.01)
    two = [replace(one, times=replace(one.times, epoch_times_s=[0.5, 0.5])) for one in several]
    assert "times.step_time_s.epochs.p95" in values(summarise(two))
    assert shown["times.call_time_p99_s"] == 0.5
    one_call = [replace(one, resolved=Resolved(1, 32, "fork", "float32")) for one in single]
    assert "times.call_time_p99_s" not in values(summarise(one_call))


def test_unmeasured_statistic_has_no_value() -> None:
    assert values(summarise([make_record(None, status=Status.TIMEOUT)])) == {}


def test_external_command_has_no_statistic_of_steps() -> None:
    task = TaskRun("t", ["true"], "speed", [Metric("speed", 4.0, "x/s", goal=Goal.HIGHER)])
    records = [replace(make_record(None, repeat, task=task), times=Times()) for repeat in range(3)]
    assert not any(metric.startswith("times.") for metric in values(summarise(records)))


def test_variation_is_the_median_over_processes_of_the_deviation_over_the_mean() -> None:
    epochs_s = ([1.0, 3.0], [2.0, 2.0], [1.0, 1.0])
    records = [
        replace(make_record(0.01, repeat), times=Times(step_time_s=0.01, epoch_times_s=several))
        for repeat, several in enumerate(epochs_s)
    ]
    assert values(summarise(records))["times.epoch_times_s.variation"] == 0.0
    assert values(summarise(records[:1]))["times.epoch_times_s.variation"] == pytest.approx(2**0.5 / 2)
    single = replace(records[0], times=Times(step_time_s=0.01, epoch_times_s=[1.0]))
    assert "times.epoch_times_s.variation" not in values(summarise([single]))


FIXED = "times.fixed_time_per_epoch_s"


@pytest.mark.parametrize(
    ("long_s", "short_s", "value", "noise"),
    [
        ([1.01, 1.011, 1.009, 1.01], [0.21, 0.2101, 0.2099], 0.010, None),
        ([1.01, 1.4, 0.7, 1.0], [0.21, 0.25, 0.18], None, Hidden(pytest.approx(0.1248, abs=1e-4))),
        ([1.0, 1.001, 0.999], [0.19, 0.1901, 0.1899], None, Hidden(None)),
        ([1.01], [0.21], None, Hidden(None)),
        ([1.01, 1.01], [], None, None),
    ],
    ids=["separate", "contains zero", "below zero", "no interval", "not measured"],
)
def test_a_fixed_time_that_noise_hides_has_no_value(
    long_s: list[float], short_s: list[float], value: float | None, noise: Hidden | None
) -> None:
    """Epochs of 50 and 10 steps of 20 ms and of 10 ms fixed time; an epoch cannot cost less than nothing."""
    record = make_record(0.02)
    assert record.resolved is not None
    times = Times(step_time_s=0.02, epoch_times_s=long_s)
    if short_s:
        fixed_s = statistics.median(short_s) - 10 * (statistics.median(long_s) - statistics.median(short_s)) / 40
        times = replace(
            times, short_epoch_steps=10, short_epoch_times_s=short_s, fixed_time_per_epoch_s=round(fixed_s, 9)
        )
    cell = summarise([replace(record, times=times, resolved=replace(record.resolved, steps_per_epoch=50))])
    assert values(cell).get(FIXED) == (None if value is None else pytest.approx(value))
    assert hidden(cell).get(FIXED) == noise
