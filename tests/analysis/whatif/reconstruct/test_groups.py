"""Collectives without a group are assigned by what the ranks of each group call next."""

from __future__ import annotations

from keras_matrix.analysis.whatif.reconstruct.nodes import assign_groups
from keras_matrix.analysis.whatif.reconstruct.pieces import RankTrace
from tests.analysis.whatif.reconstruct.pieces import all_reduce, together, trace, work

ROWS_AND_COLUMNS = {"0 1": (0, 1), "2 3": (2, 3), "0 2": (0, 2), "1 3": (1, 3), "all": (0, 1, 2, 3)}


def rank(number: int, *calls: tuple[int, float, float]) -> RankTrace:
    """A rank that sums these bytes from begin to end."""
    sums = [together("sum", begin, end, all_reduce(size, group="")) for size, begin, end in calls]
    return trace({"host": [[work("a", 0, 1)]], "link": [sums]}, [(0, 100)], number)


def groups_of(traces: list[RankTrace]) -> list[list[str]]:
    return [[piece.call.group for piece in one.lanes["link"][0] if piece.call] for one in traces]


def test_bytes_tell_groups_apart() -> None:
    traces = [rank(at, (8 if at < 2 else 16, 10, 20), (32 if at % 2 else 64, 30, 40)) for at in range(4)]
    assign_groups(traces, ROWS_AND_COLUMNS, [0] * 4)
    assert groups_of(traces) == [["0 1", "0 2"], ["0 1", "1 3"], ["2 3", "0 2"], ["2 3", "1 3"]]


def test_times_tell_groups_with_equal_bytes_apart() -> None:
    rows = {0: (10, 20), 1: (11, 20), 2: (40, 50), 3: (42, 50)}
    traces = [rank(at, (8, *rows[at])) for at in range(4)]
    assign_groups(traces, {name: ranks for name, ranks in ROWS_AND_COLUMNS.items() if name != "all"}, [0] * 4)
    assert groups_of(traces) == [["0 1"], ["0 1"], ["2 3"], ["2 3"]]
