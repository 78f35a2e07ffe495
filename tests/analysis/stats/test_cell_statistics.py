"""The list of statistics: unique names and labels, and a value only if measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.table import summarise
from keras_matrix.analysis.stats.cell_statistics import STATISTICS, values
from keras_matrix.records.schema import Record, Status, Times
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
