"""Partial failures of a cell, and whether new fails more often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.comparison.versus import increased_failure, partial_failures
from keras_matrix.records.schema import Record, Status
from tests.conftest import make_record


def cell(*statuses: Status) -> list[Record]:
    """One record a repeat."""
    return [make_record(0.01 if status is Status.OK else None, at, status) for at, status in enumerate(statuses)]


OK, CRASH, TIMEOUT, INFRA = Status.OK, Status.CRASH, Status.TIMEOUT, Status.INFRA


def test_failures_are_counted_by_status_with_the_first_reason() -> None:
    records = [replace(record, reason=f"reason {record.repeat}") for record in cell(OK, CRASH, TIMEOUT, CRASH)]
    found = partial_failures({"new": records})
    assert [str(way) for way in found] == ["new: crash in 2 of 4 repeats", "new: timeout in 1 of 4 repeats"]
    assert [way.reason for way in found] == ["reason 1", "reason 2"]
    assert partial_failures({"new": cell(OK, Status.UNSTABLE)}) == []


def test_infrastructure_failures_and_other_repeats_do_not_count() -> None:
    records = cell(OK, INFRA, CRASH, CRASH)
    assert [str(way) for way in partial_failures({"new": records})] == ["new: crash in 2 of 3 repeats"]
    assert [str(way) for way in partial_failures({"new": records}, {0, 1, 2})] == ["new: crash in 1 of 2 repeats"]
    assert partial_failures({"new": cell(INFRA)}) == []


@pytest.mark.parametrize(
    ("base", "new", "worse"),
    [
        ((OK, OK), (OK, OK), None),
        ((OK, CRASH), (OK, CRASH), None),
        ((OK, CRASH), (OK, OK), None),
        ((OK, OK), (OK, CRASH), "new: crash in 1 of 2 repeats"),
        ((OK, CRASH), (OK, CRASH, OK, OK), None),  # a smaller share
        ((OK, OK, OK, CRASH), (OK, CRASH), "new: crash in 1 of 2 repeats"),
        ((OK, CRASH), (OK, TIMEOUT), "new: timeout in 1 of 2 repeats"),
    ],
)
def test_increased_failure_compares_shares_of_repeats_by_status(
    base: tuple[Status, ...], new: tuple[Status, ...], worse: str | None
) -> None:
    found = increased_failure(partial_failures({"base": cell(*base), "new": cell(*new)}), "new")
    assert (str(found) if found else None) == worse
