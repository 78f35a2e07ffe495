"""The command that would decide a row that is not separable."""

from __future__ import annotations

from keras_matrix.analysis.comparison.run_summary import Undecided, undecided
from keras_matrix.analysis.comparison.table import Row, table
from keras_matrix.records.schema import Record
from tests.conftest import make_record, make_settings


def records_of(scatter: float, ratio: float = 1.0, repeats: int = 6, **settings: object) -> list[Record]:
    """Return repeats of two backends whose log ratios alternate by `scatter` around `ratio`."""
    return [
        make_record(0.01 * factor, n, settings=make_settings(backend=name, **settings))
        for n in range(repeats)
        for name, factor in (("jax", 1.0), ("torch", ratio * (1 + scatter * (-1) ** n)))
    ]


def rows_of(*records: Record) -> list[Row]:
    return table(records)


def test_open_row_needs_more_repeats_the_more_it_scatters() -> None:
    found = [one for scatter in (0.02, 0.05) for one in undecided(rows_of(*records_of(scatter))).values()]
    assert [one.repeats for one in found] == [5, 12]
    assert {one.effect for one in found} == {0.05}


def test_scatter_beyond_the_most_repeats_says_what_they_show() -> None:
    [found] = undecided(rows_of(*records_of(0.3))).values()
    assert found.repeats == 40
    assert 0.1 < found.effect < 0.2


def test_decided_rows_and_rows_without_interval_have_no_command() -> None:
    assert undecided(rows_of(*records_of(0.02, ratio=2.0))) == {}
    assert undecided(rows_of(*records_of(0.02, repeats=3))) == {}


def test_row_with_all_repeats_has_no_command() -> None:
    assert undecided(rows_of(*records_of(0.3, repeats=40))) == {}


def test_row_that_is_no_discovery_among_the_others_needs_more_repeats() -> None:
    close = records_of(0.02, ratio=1.03, repeats=5, workload="gru")
    others = [record for n in range(20) for record in records_of(0.02, workload=f"w{n}", repeats=5)]
    rows = rows_of(*close, *others)
    assert "not a discovery among 21 rows" in rows[0].verdict
    assert undecided(rows)[rows[0].key].repeats == 5


def test_filters_name_what_tells_the_works_of_a_workload_apart() -> None:
    found = undecided(rows_of(*records_of(0.02, batch_size=32), *records_of(0.02, batch_size=64)))
    assert [one.filters for one in found.values()] == [
        ("workload=mnist_mlp", "batch_size=32"),
        ("workload=mnist_mlp", "batch_size=64"),
    ]


def test_filters_match_values_with_the_signs_of_a_pattern_and_name_no_key_that_a_matrix_lacks() -> None:
    cells = [{"params": {"feed": "[a]*"}, "set_by_matrix": "feed"}, {"params": {"feed": True}}]
    found = undecided(rows_of(*(record for one in cells for record in records_of(0.02, workload="my:build", **one))))
    assert {one.filters for one in found.values()} == {
        ("workload=my:build", "params.feed=[[]a][*]"),
        ("workload=my:build", "params.feed=true"),
    }


def test_text_is_a_command_for_a_shell() -> None:
    one = Undecided(("workload=my models:build",), 12, 0.05)
    assert one.text("runner --matrix 'my matrix.yaml'") == (
        "to decide: runner --matrix 'my matrix.yaml' --filter 'workload=my models:build' --repeats auto "
        "(about 12 repeats show a difference of 5.0 %)"
    )
    assert one.text("runner --filter 'workload=my models:build'").count("--filter") == 1
    assert one.text(None) == "to decide: about 12 repeats show a difference of 5.0 %"
