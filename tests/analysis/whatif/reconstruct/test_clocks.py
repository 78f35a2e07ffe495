"""Clocks are aligned by marks of the machine's clock, else by the ends of collectives."""

from __future__ import annotations

from keras_matrix.analysis.whatif.reconstruct.pieces import Alignment, Clock, RankTrace, align
from tests.analysis.whatif.reconstruct.pieces import all_reduce, together, trace, work


def rank(number: int, ends: list[float], operation: str = "all_reduce") -> RankTrace:
    sums = [together("sum", end - 5, end, all_reduce(8, at)) for at, end in enumerate(ends)]
    for one in sums:
        if one.call:
            one.call.operation = operation
    return trace({"host": [[work("a", 0, 1)]], "link": [sums]}, [(0, 100)], number)


def test_marks_of_one_machine_decide_by_the_most_accurate_one() -> None:
    clocks = [Clock([(100, 40), (205, 140)], "a", 0), Clock([(1000, 40), (1090, 140)], "a", 0)]
    assert align([rank(0, [50]), rank(1, [80])], clocks) == Alignment((0, 60 - 950))


def test_marks_of_several_machines_are_not_comparable() -> None:
    clocks = [Clock([(100, 40)], "a", 0), Clock([(1000, 40)], "b", 0)]
    assert align([rank(0, [50]), rank(1, [80])], clocks).offsets_ns == (0, -30_000)


def test_most_collectives_decide_not_the_one_that_ended_late() -> None:
    clocks = [Clock([], None, 0)] * 2
    assert align([rank(0, [10, 20, 30]), rank(1, [110, 120, 190])], clocks) == Alignment((0, -100_000))


def test_ranks_without_a_common_collective_keep_their_time_base_with_a_caveat() -> None:
    clocks = [Clock([], None, 500), Clock([], None, 700)]
    assert align([rank(0, [10]), rank(1, [])], clocks) == Alignment(
        (0, 200), ("the clocks of ranks [1] are not aligned: they share no collective with rank 0",)
    )


def test_broadcast_does_not_align_because_its_root_ends_early() -> None:
    clocks = [Clock([], None, 0)] * 2
    assert align([rank(0, [10], "broadcast"), rank(1, [90], "broadcast")], clocks).offsets_ns == (0, 0)


def test_one_rank_needs_no_alignment() -> None:
    assert align([rank(3, [10])], [Clock([], None, 9)]) == Alignment((0,))
