"""The search for the largest batch that fits, with a fake memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keras_matrix.records.schema import Status
from keras_matrix.runner.plan.largest_batch import Try, search


def memory_of(limit: int, tried: list[int] | None = None) -> Callable[[int], Try]:
    def attempt(size: int) -> Try:
        if tried is not None:
            tried.append(size)
        return Try(size, Status.OK if size <= limit else Status.OOM_DEVICE)

    return attempt


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (5, 5), (16, 16), (37, 36), (100, 96), (1000, 960)])
def test_search_finds_the_largest_batch_to_an_eighth_of_a_power_of_two(limit: int, expected: int) -> None:
    found = search(memory_of(limit))
    assert found.largest is not None
    assert found.smallest_too_large is not None
    assert found.largest.batch_size == expected
    assert found.smallest_too_large.batch_size > limit


def test_search_doubles_and_then_bisects() -> None:
    tried: list[int] = []
    search(memory_of(100, tried))
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104]


def test_search_stops_at_the_largest_allowed_batch() -> None:
    found = search(memory_of(10**9), most=50)
    assert (found.largest, found.smallest_too_large, found.tries) == (Try(50, Status.OK), None, 7)


def test_memory_too_small_for_one_sample_finds_no_batch() -> None:
    found = search(memory_of(0))
    assert (found.largest, found.smallest_too_large, found.tries) == (None, Try(1, Status.OOM_DEVICE), 1)


def test_another_status_than_out_of_memory_stops_the_search_with_its_reason() -> None:
    broken = Try(4, Status.ERROR, "ValueError: no such layer")
    found = search(lambda size: broken if size == 4 else Try(size, Status.OK))
    assert (found.stopped, found.tries) == (broken, 3)


def test_unstable_try_fits() -> None:
    found = search(lambda size: Try(size, Status.UNSTABLE if size <= 2 else Status.OOM_HOST))
    assert found.largest == Try(2, Status.UNSTABLE)
