"""Entries of a matrix that a service left out: their list, and reading them from run.json."""

from __future__ import annotations

import pytest

from keras_matrix.records.left_out import KEY, MOST_LISTED, LeftOut, lines, listed, read

ONE = LeftOut("matrix.yaml:4", "lstm", "device: gpu is not this service's (cpu)")


def test_of_many_the_first_are_listed_and_the_others_counted() -> None:
    assert listed([ONE] * (MOST_LISTED + 2))[-2:] == [f"  {ONE}", "  and 2 more"]
    assert listed([ONE] * MOST_LISTED) == [f"  {ONE}"] * MOST_LISTED
    assert lines([]) == []
    assert lines([ONE])[0] == "left out, since this service cannot run it:"


@pytest.mark.parametrize("damaged", [None, "text", {"place": "x"}, 3, [None, "text", 3]])
def test_a_damaged_list_in_a_run_json_reads_as_nothing(damaged: object) -> None:
    assert read({KEY: damaged}) == ()
    assert read({}) == ()


def test_an_item_that_lacks_a_part_reads_as_empty_text() -> None:
    assert read({KEY: [{"place": "matrix.yaml:4", "reason": 3}]}) == (LeftOut("matrix.yaml:4", "", "3"),)
