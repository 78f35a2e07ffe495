"""Finds the collectives that block a device: those at whose end it has nothing to do, in most steps.

XLA's CPU client runs a collective on a thread of the pool that runs the operations. What else is ready waits if no
other thread is free, although it does not use the result: such a collective belongs to the sequence of operations.
TensorFlow's collectives have threads of their own: there the next operation waits for the result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from keras_matrix.analysis.whatif.build.pieces import TOLERANCE_NS
from keras_matrix.analysis.whatif.build.xplane.rank import Rank
from keras_matrix.analysis.whatif.build.xplane.reading import Interval, union
from keras_matrix.analysis.whatif.build.xplane.rows import Row


def blocked(rank: Rank, lane: str) -> dict[int, list[Row]]:
    """Return the collectives that block a lane by the identity of the row that begins after them, in order."""
    busy = [
        union((piece.start_ns, piece.end_ns) for piece in pieces if piece.end_ns > piece.start_ns)
        for pieces in rank.lanes[lane]
    ]
    rows = rank.rows.lanes[lane]
    found: dict[int, list[Row]] = {}
    for row in sorted(_collectives(rank, lane), key=lambda one: one.position):
        idle = sum(_is_idle(own, piece.end_ns) for piece, own in zip(rank.pieces[id(row)], busy, strict=True))
        after = next((one for one in rows if one.position > row.position), None)
        if after is not None and 2 * idle > len(busy):
            found.setdefault(id(after), []).append(row)
    return found


def take(rank: Rank, lane: str, collective: Row, after: Row) -> None:
    """Move a collective from its lane into this one, before the row that follows it."""
    rank.rows.lanes[collective.lane].remove(collective)
    for pieces in rank.lanes[collective.lane]:
        pieces[:] = [piece for piece in pieces if piece.name != collective.name]
    rows = rank.rows.lanes[lane]
    rows.insert(next(at for at, row in enumerate(rows) if row is after), collective)
    collective.lane = lane
    for piece in rank.pieces[id(collective)]:
        piece.lane = lane


def _collectives(rank: Rank, lane: str) -> list[Row]:
    return [row for other, rows in rank.rows.lanes.items() if other != lane for row in rows if row.is_collective]


def _is_idle(busy: Sequence[Interval], at_ns: int) -> bool:
    """Return whether nothing runs at a time, and for the tolerance before it."""
    before = bisect_left(busy, (at_ns - TOLERANCE_NS, 0)) - 1
    return before < 0 or busy[before][1] <= at_ns
