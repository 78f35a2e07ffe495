"""The answer of a run: one sentence from the verdicts of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.run_summary import subject
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Record, Status, Times
from tests.analysis.comparison.test_table import APART, CLOSE, records_of

JAX_LEADS = {"tensorflow": 0.0200, "jax": 0.0100}
TENSORFLOW_LEADS = {"tensorflow": 0.0100, "jax": 0.0200}
ALIKE = {"tensorflow": 0.0101, "jax": 0.0100}


def rows_of(*works: dict[str, float], repeats: int = 5) -> list[Row]:
    """Return a table with a row for each work, named w0, w1, ..."""
    return table([one for i, work in enumerate(works) for one in records_of(work, workload=f"w{i}", repeats=repeats)])


def test_rows_are_counted_by_backend_and_the_mean_is_the_leading_backends_time() -> None:
    rows = rows_of(JAX_LEADS, JAX_LEADS, JAX_LEADS, TENSORFLOW_LEADS, ALIKE)
    found = result_table(rows).answer
    assert (found.rows, found.fastest, found.undecided) == (5, {"jax": 3, "tensorflow": 1}, 1)
    [mean] = found.means
    [league] = suite(rows)
    ratio = league.ratios["tensorflow"].estimate
    assert (mean.backend, mean.against, mean.rows) == ("jax", "tensorflow", 5)
    assert mean.ratio.centre == pytest.approx(1 / ratio.centre)
    assert mean.ratio.bounds == pytest.approx((1 / (ratio.high or 0), 1 / (ratio.low or 0)))
    assert found.text == (
        "jax is fastest in 3 of 5 rows, tensorflow in 1; 1 is undecided; over all rows jax takes 0.76x [0.74 0.79] of "
        "tensorflow's time"
    )


def test_only_row_is_its_verdict_and_has_no_mean() -> None:
    [row] = rows_of(APART)
    assert (result_table([row]).answer.text, result_table([row]).answer.means) == (row.verdict, ())
    [close] = rows_of(CLOSE)
    assert result_table([close]).answer.text == close.verdict


def test_too_few_repeats_name_no_fastest() -> None:
    found = result_table(rows_of(JAX_LEADS, JAX_LEADS, TENSORFLOW_LEADS, repeats=1)).answer
    assert (found.fastest, found.undecided, found.lowest) == ({}, 3, {"jax": 2, "tensorflow": 1})
    assert found.text == (
        "no backend is shown to be fastest in 3 of 3 rows (jax has the lowest figure in 2, tensorflow in 1); over all "
        "rows jax takes 0.81x (no interval) of tensorflow's time"
    )
    [row] = rows_of(JAX_LEADS, repeats=1)
    assert result_table([row]).answer.text == (
        "not separable: fewer than 5 repeats give no interval; jax has the lowest figure"
    )


def test_rows_that_are_not_compared_are_counted_and_the_mean_says_over_how_many_rows_it_is() -> None:
    rows = rows_of(JAX_LEADS, JAX_LEADS, {"jax": 0.01})
    other_hosts = [
        replace(one, machine=replace(one.machine, host_id=f"{len(one.settings.backend):016}"))
        for one in records_of(JAX_LEADS, workload="w9")
    ]
    found = result_table([*rows, *table(other_hosts)]).answer
    assert (found.rows, found.fastest, found.not_comparable, found.nothing_to_compare) == (4, {"jax": 2}, 1, 1)
    assert found.text == (
        "jax is fastest in 2 of 4 rows; 1 is not comparable; 1 has nothing to compare; over 2 rows jax takes 0.50x "
        "[0.49 0.52] of tensorflow's time"
    )


def test_one_backend_has_a_time_and_no_comparison() -> None:
    assert result_table(rows_of({"jax": 0.00421})).answer.text == "jax takes 4.19 ms a step; nothing to compare"
    assert result_table(rows_of({"jax": 0.01}, {"jax": 0.02})).answer.text == "nothing to compare in 2 rows"
    failed: list[Record] = [
        replace(one, status=Status.CRASH, reason="signal 11", times=Times()) for one in records_of({"jax": 0.01})
    ]
    assert result_table(table(failed)).answer.text == "no cell was measured"
    assert result_table([]).answer.text == "nothing was measured yet"


def test_leagues_are_named_if_there_are_two() -> None:
    records = [
        one
        for i in range(2)
        for league in ("as_shipped", "matched")
        for one in records_of(JAX_LEADS, workload=f"w{i}", league=league)
    ]
    text = result_table(table(records)).answer.text
    assert text.startswith("jax is fastest in 4 of 4 rows; over 2 rows of league as_shipped jax takes 0.50x [")
    assert "; over 2 rows of league matched jax takes 0.50x [" in text


def test_answer_does_not_depend_on_the_order_of_the_records() -> None:
    records = [one for i, work in enumerate((JAX_LEADS, ALIKE)) for one in records_of(work, workload=f"w{i}")]
    assert result_table(table(records)).answer == result_table(table(records[::-1])).answer


def test_subject_names_workloads_and_backends() -> None:
    assert subject(rows_of(JAX_LEADS)) == "w0 on tensorflow and jax"
    assert subject(rows_of(JAX_LEADS, APART)) == "w0 and w1 on tensorflow, jax and torch"
    assert subject(rows_of(*[JAX_LEADS] * 4)) == "4 workloads on tensorflow and jax"
    assert subject([]) == ""
