"""Primary metrics: the figure that cells are compared by, and values without a ratio."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from keras_matrix.analysis.comparison.primary_metric import cost, figure_value, primary_value, without_ratio
from keras_matrix.analysis.comparison.table import by_repeat, table
from keras_matrix.records.schema import Record
from keras_matrix.records.task import Goal, Metric, TaskRun
from tests.conftest import make_record, make_settings


def of(value: float | None, goal: Goal = Goal.LOWER, repeat: int = 0, axis: str = "n=1") -> Record:
    task = TaskRun("t", ["true"], "loss", [Metric("loss", value, "nats", goal=goal)])
    return make_record(None, repeat, settings=make_settings(workload="task t", backend=axis), task=task)


@pytest.mark.parametrize(
    ("value", "goal", "expected"),
    [
        (4.0, Goal.LOWER, 4.0),
        (4.0, Goal.HIGHER, 0.25),
        (0.0, Goal.LOWER, None),
        (0.0, Goal.HIGHER, None),
        (-4.0, Goal.HIGHER, None),
        (None, Goal.LOWER, None),
    ],
)
def test_cost_is_positive_and_lower_is_better(value: float | None, goal: Goal, expected: float | None) -> None:
    assert cost(of(value, goal)) == expected


def test_cost_of_a_workload_is_its_step_time() -> None:
    record = make_record(0.01)
    assert (figure_value(record), cost(record), without_ratio([record]), primary_value([record])) == (
        0.01,
        0.01,
        False,
        None,
    )


def made(first: Sequence[float], second: Sequence[float]) -> list[Record]:
    return [
        of(value, repeat=repeat, axis=axis)
        for axis, values in (("n=1", first), ("n=2", second))
        for repeat, value in enumerate(values)
    ]


@pytest.mark.parametrize("second", [[-1.0, -2.0, -3.0, -4.0, -9.0], [0.0] * 5, [5.0, 6.0, -3.0, 5.5, 6.5]])
def test_metric_that_is_not_above_zero_is_shown_and_not_compared(second: list[float]) -> None:
    (row,) = table(made([1.0, 2.0, 3.0, 4.0, 5.0], second))
    cell = row.cells["n=2"]
    assert row.verdict == "nothing to compare: loss is not above zero, so it has no ratio"
    assert (row.ratios, cell.step_time, by_repeat(cell)) == ((), None, {})
    assert primary_value(cell.measured) == sorted(second)[2]
