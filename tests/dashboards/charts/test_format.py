"""Formats of numbers."""

from __future__ import annotations

import pytest

from keras_matrix.dashboards.charts import axes, format
from keras_matrix.dashboards.charts.format import MEMORY_UNITS, MILLISECOND, SECOND


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.000123456, "0.000123"),
        (0.4117, "0.412"),
        (0.9996, "1.00"),
        (1.2, "1.20"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (123456.0, "123,000"),
        (-3.14159, "-3.14"),
        (0.0, "0"),
        (None, "—"),
        (float("nan"), "—"),
    ],
)
def test_a_number_has_three_significant_digits_and_none_is_a_dash(value: float | None, expected: str) -> None:
    assert format.number(value) == expected


def test_an_interval_has_the_decimals_of_its_centre() -> None:
    assert format.interval(0.00987, 0.0146, 0.0123, MILLISECOND.size) == "9.9–14.6"
    assert format.interval(None, 1.0, 1.0) is None


def test_quantity_has_its_unit_and_a_missing_value_has_none() -> None:
    assert format.quantity(0.0123, MILLISECOND) == "12.3\u00a0ms"
    assert format.quantity(None, MILLISECOND) == "—"


def test_unit_is_the_largest_with_a_value_of_at_least_one() -> None:
    names = [format.unit_for([seconds]).name for seconds in (2.0, 0.5, 4e-5, 3e-9, 1e-12)]
    assert names == ["s", "ms", "µs", "ns", "ns"]
    assert format.unit_for([]) == SECOND
    assert format.unit_for([3 << 30], MEMORY_UNITS).name == "GiB"
    assert format.memory(None) == "—"


def test_label_that_is_not_a_date_is_unchanged() -> None:
    assert format.moment("2025-11-21T05:25:00Z") == "21 November 2025, 05:25 UTC"
    assert format.moment("2025-11-21T05:25:00") == "21 November 2025, 05:25 UTC"
    assert format.moment("yesterday") == "yesterday"


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
