"""The operations of an XLA or TensorFlow device as one sequence, with times that add up to its work, and the
dependencies that no file states.

Operations of these clients overlap on one thread pool, so that an event's time is not its own: each moment belongs to
the running operation that ends first.

A step begins with what the device waited for: fetching a batch, and the host's launch; it ends with the host's return.
So the host has the time that nothing else hides. The host is also responsible for the time before the first operation
of another program. Anything else is a gap, unless a dependency or a collective that blocks the device explains it.

A module of its own: it knows the times of a lane, and `graph` the nodes of all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import TOLERANCE_NS, Lane, Piece, Window
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank, wait
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import STREAM, Interval, OperationRow, Profile, union
from keras_matrix.records.traces.neutral import Phase, TrackKind

INPUT, LAUNCH, RETURN = "input", "launch", "return"
Times = NDArray[np.int64]
# Of the steps, in which something must have ended before.
NEARLY_ALL = 0.9
# Types of operations that join several gradients to be summed at once.
JOINS = re.compile(r"^(Concat|Pack)")


def lay_out(rank: Rank) -> None:
    """Give the pieces of a rank their times, and its steps those in which its main lane runs them."""
    for lane in rank.chains:
        first_step = 0
        windows: list[Window] = []
        collectives = _blocking(rank, lane)
        for profile in rank.profiles:
            steps = range(first_step, first_step + len(profile.windows))
            windows += _Chain(rank, profile, lane, steps, collectives).lay_out()
            first_step = steps.stop
        if lane == rank.main:
            rank.windows = windows


def _blocking(rank: Rank, lane: str) -> dict[int, list[OperationRow]]:
    """Return the collectives that the operations of a lane wait for, by the identity of the row that does.

    Those that run on the threads of the operations become operations of the lane.
    """
    blocking: dict[int, list[OperationRow]] = {}
    waiting_by_row: dict[int, list[OperationRow]] = {}
    blocked_by_row = blocked(rank, lane)
    for row in rank.rows.lanes[lane]:
        for collective in blocked_by_row.get(id(row), ()):
            if collective.identity.program and collective.identity.stream is None:
                blocking.setdefault(id(row), []).append(collective)
            else:
                wait(rank, row, collective)
                waiting_by_row.setdefault(id(row), []).append(collective)
    take(rank, lane, blocking)
    return waiting_by_row


class _Chain:
    """A lane in the steps of one file."""

    def __init__(
        self, rank: Rank, profile: Profile, lane: str, steps: range, collectives: Mapping[int, Sequence[OperationRow]]
    ) -> None:
        """`collectives` block the lane, by the identity of the row that waits for them."""
        self._rank, self._profile, self._steps, self._lane = rank, profile, steps, lane
        self._collectives = collectives
        self._is_main = lane == rank.main
        pieces = [piece for step in steps for piece in rank.lanes[lane][step] if not self._is_fixed(piece)]
        intervals = [(piece.start_ns, piece.end_ns) for piece in pieces]
        self._served = {id(piece): ns for piece, ns in zip(pieces, served_ns(intervals), strict=True)}
        self._busy = union(interval for interval in intervals if interval[1] > interval[0])
        self._host = union([*profile.host, *profile.inputs])
        self._idle: list[Interval] = []
        self._now = profile.windows[0].begin_ns

    def lay_out(self) -> list[Window]:
        """Set the times of the pieces; return the windows of the steps."""
        windows = []
        for step, window in zip(self._steps, self._profile.windows, strict=True):
            begin_ns = self._now
            self._idle = idle(self._busy, (window.begin_ns, window.end_ns))
            self._rank.lanes[self._lane][step] = self._step(step, window)
            windows.append(Window(begin_ns, self._now))
        return windows

    def _step(self, step: int, window: Window) -> Lane:
        lane: Lane = []
        program: str | None = None
        rows = self._rank.rows.lanes[self._lane]
        fixed = [row for row in rows if self._is_fixed(self._rank.pieces[id(row)][step])]
        waited = [row for collectives in self._collectives.values() for row in collectives]
        pending_ends_ns = sorted(self._rank.pieces[id(row)][step].end_ns for row in (*fixed, *waited))
        for row in rows:
            piece = self._rank.pieces[id(row)][step]
            pieces_before = [
                self._rank.pieces[id(collective)][step] for collective in self._collectives.get(id(row), ())
            ]
            for collective in [piece] if self._is_fixed(piece) else pieces_before:
                pending_ends_ns.remove(collective.end_ns)
                self._pass(collective.end_ns - 1)
            if self._is_fixed(piece):
                lane.append(piece)
                continue
            passed_intervals = self._pass(self._now, pending_ends_ns[0] - TOLERANCE_NS if pending_ends_ns else None)
            if self._is_main and row.identity.program != program:
                lane += self._launch(step, passed_intervals, row.identity.program, is_first=program is None)
                program = row.identity.program
            piece.start_ns, piece.end_ns = self._now, self._now + self._served[id(piece)]
            self._now = piece.end_ns
            lane.append(piece)
        passed_intervals = self._pass(window.end_ns)
        if self._is_main:
            lane.append(self._return(step, window, passed_intervals))
        return lane

    def _is_fixed(self, piece: Piece) -> bool:
        """Return whether a piece keeps its times: a collective on the threads of the operations."""
        return piece.call is not None and not self._lane.startswith(STREAM)

    def _pass(self, begin_ns: int, before_ns: int | None = None) -> list[Interval]:
        """Let the idle intervals of the step pass that begin until a time and end before another; return them."""
        intervals = []
        while self._idle and self._idle[0][0] <= begin_ns and (before_ns is None or self._idle[0][1] < before_ns):
            first_ns, after_ns = self._idle.pop(0)
            self._now += after_ns - first_ns
            intervals.append((first_ns, after_ns))
        return intervals

    def _launch(self, step: int, passed_intervals: Sequence[Interval], program: str, is_first: bool) -> Lane:
        """Return the fetch of a batch and the launch of a program, as long as the device waited for them."""
        input_ns = sum(covered_ns(self._profile.inputs, interval) for interval in passed_intervals) if is_first else 0
        host_ns = sum(covered_ns(self._host, interval) for interval in passed_intervals) - input_ns
        lane = []
        if is_first and any(profile.inputs for profile in self._rank.profiles):
            lane.append(self._piece(INPUT, NodeKind.INPUT, step, (input_ns, host_ns)))
        name = LAUNCH if is_first else f"{LAUNCH} {program}"
        lane.append(self._piece(name, NodeKind.HOST, step, (max(0, host_ns), 0)))
        return lane

    def _return(self, step: int, window: Window, passed_intervals: Sequence[Interval]) -> Piece:
        """Return the end of a step: what the host does after the last operation of all devices of the file."""
        index = step - self._steps.start
        last_ns = max((run.end_ns for steps in self._profile.runs.values() for run in steps[index]), default=0)
        intervals_after = [
            (max(begin_ns, last_ns), end_ns) for begin_ns, end_ns in passed_intervals if end_ns > last_ns
        ]
        host_ns = sum(covered_ns(self._host, interval) for interval in intervals_after)
        piece = self._piece(RETURN, NodeKind.HOST, step, (host_ns, 0))
        self._rank.returns.append(piece)
        return piece

    def _piece(self, name: str, kind: NodeKind, step: int, times_ns: tuple[int, int]) -> Piece:
        """Return work of the host with this duration, which ends so long before the present."""
        duration_ns, before_ns = times_ns
        end_ns = self._now - before_ns
        return Piece(self._lane, name, kind, end_ns - duration_ns, end_ns, cores=0.0, step=step)


def blocked(rank: Rank, lane: str) -> dict[int, list[OperationRow]]:
    """Return the collectives that block a lane by the identity of the row that begins after them, in order.

    A collective blocks a device if the device has nothing to do at its end, in most steps. XLA's CPU client runs a
    collective on a thread of the pool that runs the operations. What else is ready waits if no other thread is free,
    although it does not use the result: such a collective belongs to the sequence of operations. TensorFlow's
    collectives have threads of their own: there the next operation waits for the result.
    """
    busy_by_step = _busy(rank, lane)
    rows = rank.rows.lanes[lane]
    blocked_rows: dict[int, list[OperationRow]] = {}
    for row in sorted(_collectives(rank, lane), key=lambda row: row.position):
        idle_count = sum(
            _is_idle(busy_intervals, piece.end_ns)
            for piece, busy_intervals in zip(rank.pieces[id(row)], busy_by_step, strict=True)
        )
        row_after = next((later_row for later_row in rows if later_row.position > row.position), None)
        if row_after is not None and 2 * idle_count > len(busy_by_step):
            blocked_rows.setdefault(id(row_after), []).append(row)
    return blocked_rows


def take(rank: Rank, lane: str, collectives: Mapping[int, Sequence[OperationRow]]) -> None:
    """Move collectives into this lane, before the row by whose identity they are found.

    There each has the time in which the device does nothing else: another thread may work on during the first part.
    """
    busy_by_step = _busy(rank, lane)
    rows: list[OperationRow] = []
    for row in rank.rows.lanes[lane]:
        rows += [*collectives.get(id(row), ()), row]
    rank.rows.lanes[lane] = rows
    for collective in (collective for row_collectives in collectives.values() for collective in row_collectives):
        pieces = rank.pieces[id(collective)]
        rank.rows.lanes[collective.lane].remove(collective)
        for piece, busy_intervals in zip(pieces, busy_by_step, strict=True):
            rank.lanes[collective.lane][piece.step].remove(piece)
            piece.start_ns += covered_ns(busy_intervals, (piece.start_ns, piece.end_ns))
            piece.lane = lane
        collective.lane = lane


def _collectives(rank: Rank, lane: str) -> list[OperationRow]:
    return [
        row for other_lane, rows in rank.rows.lanes.items() if other_lane != lane for row in rows if row.is_collective
    ]


def _busy(rank: Rank, lane: str) -> list[list[Interval]]:
    """Return when a lane works, for each step."""
    return [
        union((piece.start_ns, piece.end_ns) for piece in pieces if piece.end_ns > piece.start_ns)
        for pieces in rank.lanes[lane]
    ]


def _is_idle(busy_intervals: Sequence[Interval], at_ns: int) -> bool:
    """Return whether nothing runs at a time, and for the tolerance before it."""
    index_before = bisect_left(busy_intervals, (at_ns - TOLERANCE_NS, 0)) - 1
    return index_before < 0 or busy_intervals[index_before][1] <= at_ns


def served_ns(intervals: Sequence[Interval]) -> list[int]:
    """Return the time that belongs to each of these intervals.

    XLA's and TensorFlow's CPU clients run several operations of a device at once, and each divides its work into tasks
    that wait in the same pool. So the time of an operation's event is not its own: in place of 25 to 34 ms, lanes of
    threads with these times replay to 18 to 21 ms. Here every moment in which a device works belongs to one operation,
    the running one that ends first, as if the pool served the tasks in their order. These times add up to the time in
    which the device worked, and an operation that starts before the end of the one before keeps its end.
    """
    order = sorted(range(len(intervals)), key=lambda index: intervals[index])
    served = [0] * len(intervals)
    running: list[tuple[int, int]] = []
    now, following = 0, 0
    while following < len(order) or running:
        if not running:
            now = max(now, intervals[order[following]][0])
        while following < len(order) and intervals[order[following]][0] <= now:
            heappush(running, (intervals[order[following]][1], order[following]))
            following += 1
        end, index = running[0]
        until_ns = min(end, intervals[order[following]][0]) if following < len(order) else end
        served[index] += max(0, until_ns - now)
        now = max(now, until_ns)
        while running and running[0][0] <= now:
            heappop(running)
    return served


def idle(busy_intervals: Sequence[Interval], window: Interval) -> list[Interval]:
    """Return the parts of a window outside of intervals that are sorted and do not overlap."""
    idle_intervals, reached_ns = [], window[0]
    for begin, end in busy_intervals:
        if begin >= window[1]:
            break
        if begin > reached_ns:
            idle_intervals.append((reached_ns, begin))
        reached_ns = max(reached_ns, end)
    if reached_ns < window[1]:
        idle_intervals.append((reached_ns, window[1]))
    return idle_intervals


def covered_ns(intervals: Sequence[Interval], window: Interval) -> int:
    """Return how much of an interval is covered by others, which are sorted and do not overlap."""
    return sum(max(0, min(end, window[1]) - max(begin, window[0])) for begin, end in intervals if begin < window[1])


class NodePlace(NamedTuple):
    """A node by its rank, its lane and its name."""

    rank: int
    lane: str
    name: str


class Link(NamedTuple):
    """A node that waits for one of another rank in the same step."""

    waiting: NodePlace
    before: NodePlace


class _CollectiveChain:
    """The operations of a rank's main lane in their order, with their times in each step."""

    def __init__(self, rank: Rank, phase: Phase | None = None) -> None:
        """Use those of this phase; all if there is none."""
        rows = [row for row in rank.rows.lanes.get(rank.main, ()) if not row.is_collective]
        self.rows = [row for row in rows if phase is None or row.identity.phase is phase] or rows
        self._starts, self._ends = _starts(rank, self.rows), _ends(rank, self.rows)

    def last_before(self, starts: Times) -> OperationRow | None:
        """Return the last operation that ends before these times of the steps."""
        positions = np.flatnonzero(_mostly(self._ends <= starts))
        return self.rows[int(positions[-1])] if positions.size else None

    def first_after(self, ends: Times) -> OperationRow | None:
        """Return the first operation that begins after these times of the steps."""
        positions = np.flatnonzero(_mostly(self._starts >= ends))
        return self.rows[int(positions[0])] if positions.size else None


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
    """Let collectives that no program describes wait for the backward pass, and the update for them.

    No program states these dependencies in TensorFlow's graphs, so they follow from times: what ended before something
    began, in nearly every traced step, may be what it waited for. A collective is taken to wait for the last such
    operation of the backward pass, or one after it that joins gradients, and the first operation of the update that
    begins after its end to wait for it.
    """
    collectives = [row for rows in rank.rows.lanes.values() for row in rows if row.is_collective]
    if not collectives:
        return
    described = {name for profile in rank.profiles for name in profile.programs}
    backward, update, all_rows = (
        _CollectiveChain(rank, Phase.BACKWARD),
        _CollectiveChain(rank, Phase.UPDATE),
        _CollectiveChain(rank),
    )
    for row in collectives:
        starts, ends = _starts(rank, [row]), _ends(rank, [row])
        if row.identity.program not in described:
            last_row = all_rows.last_before(starts)
            row_before = last_row if last_row and JOINS.match(last_row.identity.op) else backward.last_before(starts)
            if row_before is not None:
                wait(rank, row, row_before)
            if (row_after := update.first_after(ends)) is not None:
                wait(rank, row_after, row)
        if len(rank.profiles[0].runs) > 1 and (row_before := all_rows.last_before(starts)) is not None:
            wait(rank, row, row_before)


def between_ranks(ranks: Sequence[Rank]) -> list[Link]:
    """Return what ranks of one process wait for on other ones.

    TensorFlow's workers in one process sum their gradients on one of them: that sum waits for the others' backward
    passes, and their updates wait for the sums. The collectives of devices in one process run on the threads of their
    operations, each when a thread has ended the one before.
    """
    links = []
    for rank in ranks:
        other_ranks = [other for other in ranks if other is not rank]
        sums = [
            row
            for row in rank.rows.lanes.get(rank.main, ())
            if row.identity.kind is TrackKind.COMMUNICATION and not row.is_collective
        ]
        for other in other_ranks:
            if sums:
                backward = _CollectiveChain(other, Phase.BACKWARD)
                links += [
                    Link(_place(rank, row), _place(other, row_before))
                    for row in sums
                    if (row_before := backward.last_before(_starts(rank, [row]))) is not None
                ]
                links += _updates(rank, sums, other)
    return links


def _updates(rank: Rank, sums: Sequence[OperationRow], other: Rank) -> list[Link]:
    """Return which sums of a rank the updates of another one wait for; each waits for what the one before did, too."""
    links = []
    reached_index = -1
    update = _CollectiveChain(other, Phase.UPDATE)
    ends = _ends(rank, sums)
    for row in update.rows:
        indices_before = np.flatnonzero(_mostly(ends <= _starts(other, [row])))
        if indices_before.size and indices_before[-1] > reached_index:
            reached_index = int(indices_before[-1])
            links.append(Link(_place(other, row), _place(rank, sums[reached_index])))
    return links


def _place(rank: Rank, row: OperationRow) -> NodePlace:
    return NodePlace(rank.number, row.lane, row.name)
