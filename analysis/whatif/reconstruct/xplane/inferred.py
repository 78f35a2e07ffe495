"""Dependencies that follow only from times, where a file has no program that states them: TensorFlow's graphs.

What ended before something began, in nearly every traced step, may be what it waited for. So a collective is taken to
wait for the last such operation of the backward pass, or one after it that joins gradients, and the first operation of
the update that begins after its end to wait for it. TensorFlow's workers in one process sum their gradients on one of
them: that sum waits for the others' backward passes, and their updates wait for the sums. The collectives of devices in
one process run on the threads of their operations, each when a thread has ended the one before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank, wait
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import OperationRow
from keras_matrix.records.traces.neutral import Phase, TrackKind

Times = NDArray[np.int64]
# Of the steps, in which something must have ended before.
NEARLY_ALL = 0.9
# Types of operations that join several gradients to be summed at once.
JOINS = re.compile(r"^(Concat|Pack)")


class NodePlace(NamedTuple):
    """A node by its rank, its lane and its name."""

    rank: int
    lane: str
    name: str


class Link(NamedTuple):
    """A node that waits for one of another rank in the same step."""

    waiting: NodePlace
    before: NodePlace


class _Chain:
    """The operations of a rank's main lane in their order, with their times in each step."""

    def __init__(self, rank: Rank, phase: Phase | None = None) -> None:
        """Use those of this phase; all if there is none."""
        rows = [row for row in rank.rows.lanes.get(rank.main, ()) if not row.is_collective]
        self.rows = [row for row in rows if phase is None or row.identity.phase is phase] or rows
        self._starts, self._ends = _starts(rank, self.rows), _ends(rank, self.rows)

    def last_before(self, starts: Times) -> OperationRow | None:
        """Return the last operation that ends before these times of the steps."""
        found = np.flatnonzero(_mostly(self._ends <= starts))
        return self.rows[int(found[-1])] if found.size else None

    def first_after(self, ends: Times) -> OperationRow | None:
        """Return the first operation that begins after these times of the steps."""
        found = np.flatnonzero(_mostly(self._starts >= ends))
        return self.rows[int(found[0])] if found.size else None


def _mostly(holds: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each row whether it is true in nearly all steps."""
    return np.asarray(holds.mean(axis=1) >= NEARLY_ALL)


def _starts(rank: Rank, rows: Sequence[OperationRow]) -> Times:
    return _array([[piece.start_ns for piece in rank.pieces[id(row)]] for row in rows])


def _ends(rank: Rank, rows: Sequence[OperationRow]) -> Times:
    return _array([[piece.end_ns for piece in rank.pieces[id(row)]] for row in rows])


def _array(values: Sequence[Sequence[int]]) -> Times:
    return np.array(values, np.int64).reshape(len(values), len(values[0]) if values else 1)


def add_to_collectives(rank: Rank) -> None:
    """Let collectives that no program describes wait for the backward pass, and the update for them."""
    collectives = [row for rows in rank.rows.lanes.values() for row in rows if row.is_collective]
    if not collectives:
        return
    described = {name for profile in rank.profiles for name in profile.programs}
    backward, update, every = _Chain(rank, Phase.BACKWARD), _Chain(rank, Phase.UPDATE), _Chain(rank)
    for row in collectives:
        starts, ends = _starts(rank, [row]), _ends(rank, [row])
        if row.identity.program not in described:
            last = every.last_before(starts)
            before = last if last and JOINS.match(last.identity.op) else backward.last_before(starts)
            if before is not None:
                wait(rank, row, before)
            if (after := update.first_after(ends)) is not None:
                wait(rank, after, row)
        if len(rank.profiles[0].runs) > 1 and (before := every.last_before(starts)) is not None:
            wait(rank, row, before)


def between_ranks(ranks: Sequence[Rank]) -> list[Link]:
    """Return what ranks of one process wait for on other ones."""
    found = []
    for rank in ranks:
        others = [other for other in ranks if other is not rank]
        sums = [
            row
            for row in rank.rows.lanes.get(rank.main, ())
            if row.identity.kind is TrackKind.COMMUNICATION and not row.is_collective
        ]
        for other in others:
            if sums:
                backward = _Chain(other, Phase.BACKWARD)
                found += [
                    Link(_place(rank, row), _place(other, before))
                    for row in sums
                    if (before := backward.last_before(_starts(rank, [row]))) is not None
                ]
                found += _updates(rank, sums, other)
    return found


def _updates(rank: Rank, sums: Sequence[OperationRow], other: Rank) -> list[Link]:
    """Return which sums of a rank the updates of another one wait for; each waits for what the one before did, too."""
    found = []
    reached = -1
    update = _Chain(other, Phase.UPDATE)
    ends = _ends(rank, sums)
    for row in update.rows:
        before = np.flatnonzero(_mostly(ends <= _starts(other, [row])))
        if before.size and before[-1] > reached:
            reached = int(before[-1])
            found.append(Link(_place(other, row), _place(rank, sums[reached])))
    return found


def _place(rank: Rank, row: OperationRow) -> NodePlace:
    return NodePlace(rank.number, row.lane, row.name)
