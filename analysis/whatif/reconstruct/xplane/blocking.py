"""Finds the collectives that block a device: those at whose end it has nothing to do, in most steps.

XLA's CPU client runs a collective on a thread of the pool that runs the operations. What else is ready waits if no
other thread is free, although it does not use the result: such a collective belongs to the sequence of operations.
TensorFlow's collectives have threads of their own: there the next operation waits for the result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Interval, union
from keras_matrix.analysis.whatif.reconstruct.xplane.rows import Row
from keras_matrix.analysis.whatif.reconstruct.xplane.serial import covered_ns


def blocked(rank: Rank, lane: str) -> dict[int, list[Row]]:
    """Return the collectives that block a lane by the identity of the row that begins after them, in order."""
    busy = _busy(rank, lane)
    rows = rank.rows.lanes[lane]
    found: dict[int, list[Row]] = {}
    for row in sorted(_collectives(rank, lane), key=lambda one: one.position):
        idle = sum(_is_idle(own, piece.end_ns) for piece, own in zip(rank.pieces[id(row)], busy, strict=True))
        after = next((one for one in rows if one.position > row.position), None)
        if after is not None and 2 * idle > len(busy):
            found.setdefault(id(after), []).append(row)
    return found


def take(rank: Rank, lane: str, collectives: Mapping[int, Sequence[Row]]) -> None:
    """Move collectives into this lane, before the row by whose identity they are found.

    There each has the time in which the device does nothing else: another thread may work on during the first part.
    """
    busy = _busy(rank, lane)
    rows: list[Row] = []
    for row in rank.rows.lanes[lane]:
        rows += [*collectives.get(id(row), ()), row]
    rank.rows.lanes[lane] = rows
    for collective in (one for own in collectives.values() for one in own):
        pieces = rank.pieces[id(collective)]
        rank.rows.lanes[collective.lane].remove(collective)
        for piece, own in zip(pieces, busy, strict=True):
            rank.lanes[collective.lane][piece.step].remove(piece)
            piece.start_ns += covered_ns(own, (piece.start_ns, piece.end_ns))
            piece.lane = lane
        collective.lane = lane


def _collectives(rank: Rank, lane: str) -> list[Row]:
    return [row for other, rows in rank.rows.lanes.items() if other != lane for row in rows if row.is_collective]


def _busy(rank: Rank, lane: str) -> list[list[Interval]]:
    """Return when a lane works, for each step."""
    return [
        union((piece.start_ns, piece.end_ns) for piece in pieces if piece.end_ns > piece.start_ns)
        for pieces in rank.lanes[lane]
    ]


def _is_idle(busy: Sequence[Interval], at_ns: int) -> bool:
    """Return whether nothing runs at a time, and for the tolerance before it."""
    before = bisect_left(busy, (at_ns - TOLERANCE_NS, 0)) - 1
    return before < 0 or busy[before][1] <= at_ns
