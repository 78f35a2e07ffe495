"""Overlapping operations as one sequence that takes the same time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.analysis.whatif.reconstruct.xplane.chain import covered_ns, idle, served_ns
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import union

INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda one: (one[0], one[0] + one[1])))


def test_operations_that_do_not_overlap_keep_their_times() -> None:
    assert served_ns([(0, 4), (6, 9)]) == [4, 3]


def test_an_operation_has_the_time_from_the_end_of_the_one_before() -> None:
    assert served_ns([(0, 10), (5, 15)]) == [10, 5]


def test_an_operation_within_another_one_is_served_first() -> None:
    assert served_ns([(0, 20), (2, 5), (7, 10)]) == [14, 3, 3]


def test_an_operation_without_a_duration_has_no_time() -> None:
    assert served_ns([(3, 3), (1, 5)]) == [0, 4]


@given(INTERVALS)
def test_times_add_up_to_the_time_in_which_anything_ran(intervals: list[tuple[int, int]]) -> None:
    busy = sum(end - begin for begin, end in union(intervals))
    assert sum(served_ns(intervals)) == busy


def test_idle_times_are_those_between_intervals_within_the_window() -> None:
    assert idle([(0, 2), (4, 6), (9, 12)], (1, 10)) == [(2, 4), (6, 9)]


def test_a_window_without_intervals_is_idle() -> None:
    assert idle([], (1, 10)) == [(1, 10)]


def test_only_the_covered_part_of_an_interval_counts() -> None:
    assert covered_ns([(0, 2), (4, 6), (9, 12)], (1, 10)) == 1 + 2 + 1
