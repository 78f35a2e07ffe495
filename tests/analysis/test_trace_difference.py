"""The operations whose time per step differs most between two traces."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.traces import OperationShift, largest_shifts
from keras_matrix.records.traces.table import TimeShare, TraceSummary


def table(steps: int | None = 10, **times_s: float) -> TraceSummary:
    shares = [TimeShare(name if name != "rest" else None, 1, time_s, 0.1) for name, time_s in times_s.items()]
    return TraceSummary("jax", "cpu", 1, steps, 1.0, 1.0, 1.0, by_operation=shares)


def test_differences_per_step_are_sorted_by_size_and_equal_operations_left_out() -> None:
    before, after = table(10, mm=1.0, add=0.5, relu=0.2, rest=0.1), table(20, mm=4.0, add=0.8, relu=0.4, tanh=0.02)
    assert largest_shifts(before, after) == [
        OperationShift("mm", 0.1, 0.2),
        OperationShift("add", 0.05, 0.04),
        OperationShift(None, pytest.approx(0.01), 0.0),
    ]
    assert largest_shifts(before, after, 9)[3:] == [OperationShift("tanh", 0.0, pytest.approx(0.001))]


def test_trace_without_steps_gives_no_difference() -> None:
    assert largest_shifts(table(None, mm=1.0), table(mm=2.0)) == []
