"""Rows of the table of figures: a value, a dash, or that noise hides it."""

from __future__ import annotations

from keras_matrix.analysis.stats.cell_statistics import Hidden
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, NOT_RESOLVED, statistic_lines

FIXED = "times.fixed_time_per_epoch_s"


def test_a_value_that_noise_hides_says_so_with_the_most_that_it_may_be() -> None:
    lines = statistic_lines([{FIXED: 0.0035}, {}, {}, {}], [{}, {FIXED: Hidden(0.04)}, {FIXED: Hidden(None)}, {}])
    (line,) = (one for one in lines if one.name == "fixed per epoch")
    assert [(one.text, one.aside) for one in line.values] == [
        ("3.50", ""),
        (NOT_RESOLVED, "below 40.0 ms"),
        (NOT_RESOLVED, ""),
        (NOT_MEASURED.text, ""),
    ]
    assert "contains zero" in line.values[1].hint


def test_a_statistic_that_noise_hides_everywhere_is_shown() -> None:
    lines = statistic_lines([{}], [{FIXED: Hidden(None)}])
    assert "fixed per epoch" in [one.name for one in lines]
    assert "fixed per epoch" not in [one.name for one in statistic_lines([{}])]
