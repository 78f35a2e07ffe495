"""The answer of a run: one sentence from the verdicts of its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.run_summary import subject
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.analysis.stats.suite import suite
from keras_matrix.analysis.views.result_table import result_table
from keras_matrix.records.schema import Status, Times
from tests.analysis.comparison.test_table import APART, CLOSE, records_of
from tests.golden import Golden
from tests.messages import check_messages

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


def test_only_row_is_its_verdict_and_has_no_mean() -> None:
    [row] = rows_of(APART)
    assert (result_table([row]).answer.text, result_table([row]).answer.means) == (row.verdict, ())
    [close] = rows_of(CLOSE)
    assert result_table([close]).answer.text == close.verdict


def test_too_few_repeats_name_no_fastest() -> None:
    found = result_table(rows_of(JAX_LEADS, JAX_LEADS, TENSORFLOW_LEADS, repeats=1)).answer
    assert (found.fastest, found.undecided, found.lowest) == ({}, 3, {"jax": 2, "tensorflow": 1})


def on_other_hosts() -> list[Row]:
    records = records_of(JAX_LEADS, workload="w9")
    return table(
        replace(one, machine=replace(one.machine, host_id=f"{len(one.settings.backend):016}")) for one in records
    )


def test_rows_that_are_not_compared_are_counted() -> None:
    found = result_table([*rows_of(JAX_LEADS, JAX_LEADS, {"jax": 0.01}), *on_other_hosts()]).answer
    assert (found.rows, found.fastest, found.not_comparable, found.nothing_to_compare) == (4, {"jax": 2}, 1, 1)


def of_two_leagues() -> list[Row]:
    leagues = ("as_shipped", "matched")
    works = [(f"w{i}", league) for i in range(2) for league in leagues]
    return table(one for work, league in works for one in records_of(JAX_LEADS, workload=work, league=league))


def test_what_a_table_is_answered_with(golden: Golden) -> None:
    """The mean says over how many rows it is; leagues are named if there are two."""
    failed = [replace(one, status=Status.CRASH, reason="signal 11", times=Times()) for one in records_of({"jax": 0.01})]
    tables = {
        "four of five rows decided": rows_of(JAX_LEADS, JAX_LEADS, JAX_LEADS, TENSORFLOW_LEADS, ALIKE),
        "one process a cell": rows_of(JAX_LEADS, JAX_LEADS, TENSORFLOW_LEADS, repeats=1),
        "one row, one process a cell": rows_of(JAX_LEADS, repeats=1),
        "rows of one backend and of two machines": [*rows_of(JAX_LEADS, JAX_LEADS, {"jax": 0.01}), *on_other_hosts()],
        "one row of one backend": rows_of({"jax": 0.00421}),
        "two rows of one backend": rows_of({"jax": 0.01}, {"jax": 0.02}),
        "two leagues": of_two_leagues(),
        "no figure": table(failed),
        "no record": [],
    }
    answers = {title: [result_table(rows).answer.text] for title, rows in tables.items()}
    check_messages(golden, "answers.txt", answers)


def test_answer_does_not_depend_on_the_order_of_the_records() -> None:
    records = [one for i, work in enumerate((JAX_LEADS, ALIKE)) for one in records_of(work, workload=f"w{i}")]
    assert result_table(table(records)).answer == result_table(table(records[::-1])).answer


def test_subject_names_workloads_and_backends() -> None:
    assert subject(rows_of(JAX_LEADS)) == "w0 on tensorflow and jax"
    assert subject(rows_of(JAX_LEADS, APART)) == "w0 and w1 on tensorflow, jax and torch"
    assert subject(rows_of(*[JAX_LEADS] * 4)) == "4 workloads on tensorflow and jax"
    assert subject([]) == ""
