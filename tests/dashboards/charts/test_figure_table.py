"""Rows of the table of figures: a value, a dash, or that noise hides it."""

from __future__ import annotations

from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.stats.cell_statistics import Hidden
from keras_matrix.dashboards.charts.figure_table import (
    NOT_MEASURED,
    NOT_RESOLVED,
    StatisticColumn,
    cost_line,
    statistic_lines,
)

FIXED = "times.fixed_time_per_epoch_s"


def test_a_value_that_noise_hides_says_so_with_the_most_that_it_may_be() -> None:
    lines = statistic_lines(
        [
            StatisticColumn({FIXED: 0.0035}),
            StatisticColumn(hidden={FIXED: Hidden(0.04)}),
            StatisticColumn(hidden={FIXED: Hidden(None)}),
            StatisticColumn(),
        ]
    )
    (line,) = (one for one in lines if one.name == "fixed per epoch")
    assert [(one.text, one.aside) for one in line.values] == [
        ("3.50", ""),
        (NOT_RESOLVED, "below 40.0 ms"),
        (NOT_RESOLVED, ""),
        (NOT_MEASURED.text, ""),
    ]
    assert "contains zero" in line.values[1].hint


def test_a_statistic_that_noise_hides_everywhere_is_shown() -> None:
    lines = statistic_lines([StatisticColumn(hidden={FIXED: Hidden(None)})])
    assert "fixed per epoch" in [one.name for one in lines]
    assert "fixed per epoch" not in [one.name for one in statistic_lines([StatisticColumn()])]


def test_a_statistic_with_an_interval_shows_it_in_the_unit_of_the_table() -> None:
    energy, estimate = "usage.joules_per_sample", Estimate(0.02, 0.019, 0.021, 5)
    (line,) = (
        one
        for one in statistic_lines(
            [StatisticColumn({energy: 0.02}, {energy: estimate}), StatisticColumn({energy: 0.5})]
        )
        if one.name == "energy per sample"
    )
    assert [(one.text, one.aside) for one in line.values] == [("20.0", "[19.0 21.0]"), ("500", "")]


def test_a_cost_that_is_not_known_is_a_dash_with_the_reason() -> None:
    line = cost_line([Estimate(0.02, 0.019, 0.021, 5), None], "EUR", ["a CPU by the hour", "no price"])
    assert [(one.text, one.aside, one.hint) for one in line.values] == [
        ("0.0200", "[0.0190 0.0210]", "a CPU by the hour"),
        (NOT_MEASURED.text, "", "no price"),
    ]
