"""The record's part on several devices: a backend that does not divide the work as requested is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.records.replicas import Replica, Replicas, problem_of

TWO = [Replica("cpu:0", 16, 12, 64), Replica("cpu:1", 16, 12, 64)]
DATA = Replicas("DataParallel", True, TWO, 0, 6, 1000, [])


def test_divided_rows_and_weights_are_accepted() -> None:
    assert problem_of(DATA, 2, 32) is None
    of_model = replace(DATA, divided_weights=4, replicas=[replace(one, rows=32) for one in TWO])
    assert problem_of(of_model, 2, 32, "model") is None
    assert problem_of(replace(of_model, divided_weights=0), 2, 32, "model") == "each device has all weights"
    in_processes = [Replica("cpu", 16, 12, 64, process) for process in (1, 2)]
    assert problem_of(replace(DATA, replicas=in_processes), 2, 32) is None


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (replace(DATA, replicas=[]), "its arrays are on no device, not on 2 devices"),
        (replace(DATA, replicas=TWO[:1]), "its arrays are on cpu:0, not on 2 devices"),
        (replace(DATA, replicas=[TWO[0], TWO[0]]), "its arrays are on cpu:0, not on 2 devices"),
        (
            replace(DATA, replicas=[replace(one, rows=32) for one in TWO]),
            "the devices have 32 on cpu:0, 32 on cpu:1 rows of a batch, not 16",
        ),
        (
            replace(DATA, replicas=[TWO[0], replace(TWO[1], updates=11)]),
            "its devices counted different numbers of updates: 12, 11",
        ),
        (
            replace(DATA, replicas=[TWO[0], replace(TWO[1], samples=0)]),
            "its devices counted different numbers of samples: 64, 0",
        ),
    ],
)
def test_work_that_was_not_divided_is_named(found: Replicas, problem: str) -> None:
    assert problem_of(found, 2, 32) == problem
