"""The metrics derived from the answers of the matching process."""

from __future__ import annotations

import pytest

from keras_matrix.records.task import Compute, Goal, Metric, MetricSpec
from keras_matrix.runner.executors.tasks.watch import _metric


@pytest.mark.parametrize(
    ("asked", "reported", "unit"), [("ms", "s", "ms"), (None, "s", "s"), ("ms", None, "ms"), (None, None, None)]
)
def test_unit_in_the_matrix_has_priority_over_the_reported_one(
    asked: str | None, reported: str | None, unit: str | None
) -> None:
    answer = {"name": "wait", "value": 1.0, "matches": 2, "problem": None, "unit": reported}
    expected = Metric("wait", 1.0, unit, Compute.MAX, Goal.HIGHER, 2)
    assert _metric(MetricSpec("wait", None, asked, Compute.MAX, Goal.HIGHER), answer) == expected


def test_unrequested_metric_has_its_last_value_and_reported_unit() -> None:
    answer = {"name": "extra", "value": 7.0, "matches": 3, "problem": None, "unit": "ms", "unrequested": True}
    assert _metric(None, answer) == Metric("extra", 7.0, "ms", Compute.LAST, Goal.LOWER, 3)
