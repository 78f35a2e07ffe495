"""Axes of pictures: their ticks and limits."""

from __future__ import annotations

import pytest

from keras_matrix.dashboards.charts import axes
from keras_matrix.records.text import MEMORY_UNITS, MILLISECOND, SECOND


@pytest.mark.parametrize(
    "axis",
    [
        axes.fitted([0.00101, 0.00100], "t", MILLISECOND),
        axes.fitted([0.02, 0.035, 0.031], "t", MILLISECOND),
        axes.fitted([0.001, 0.2], "t", MILLISECOND),
        axes.logarithmic([1.0, 1.0], "t", SECOND),
        axes.logarithmic([1.0, 2.7], "t", SECOND),
        axes.logarithmic([1e-5, 1e5], "t", SECOND),
        axes.from_zero([3e8], "t", MEMORY_UNITS[2]),
    ],
)
def test_axis_contains_its_values_and_has_two_to_seven_ticks(axis: axes.Axis) -> None:
    places = [float(tick.at.rstrip("%")) for tick in axis.ticks()]
    assert 2 <= len(places) <= 7
    assert places == sorted(set(places))
    assert all(axes.EDGE <= place <= 100 - axes.EDGE for place in places)
    assert len({tick.label for tick in axis.ticks()}) == len(places)


def test_axis_does_not_magnify_noise() -> None:
    axis = axes.fitted([1.000, 1.001], "t", SECOND)
    assert axis.high - axis.low >= axes.LEAST_SPAN / 2
    assert not axis.log


def test_axis_is_logarithmic_for_a_large_range() -> None:
    assert axes.fitted([1.0, 8.0], "t", SECOND).log


def test_value_beyond_an_axis_is_placed_at_its_end() -> None:
    axis = axes.Axis("t", 1.0, 2.0, log=False, unit=SECOND)
    assert [axis.place(value) for value in (0.0, 1.5, 99.0)] == ["2.00%", "50.00%", "98.00%"]
