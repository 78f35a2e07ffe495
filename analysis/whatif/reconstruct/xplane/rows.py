"""The same operation in all steps of a rank, in an order that the steps share.

Threads race: operations that do not depend on each other end in another order in each step. Here all steps have one
order, that of the median times of the ends, which keeps the order of dependencies.

The event of the end of an asynchronous operation waits for a thread: in XLA up to the whole time of a following
all-reduce, in TensorFlow some milliseconds after a collective. What needs the result cannot have begun before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from keras_matrix.analysis.whatif.reconstruct.pieces import Window
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Identity, Interval, OperationRun, Profile, union
from keras_matrix.records.traces.neutral import TrackKind, is_collective
from keras_matrix.records.traces.xspace.tracks import COLLECTIVE

COMPUTE, LINK, STREAM = "compute", "link", "stream"
# A device that did nothing during so much of a collective, and begins to work in the rest of it, had waited for it.
IDLE, REST = 0.5, 0.1
Key = tuple[Identity, int]


@dataclass(slots=True)
class OperationRow:
    """An operation of a rank: its lane, a name that no other has there, and its runs, None in a step without it.

    `position` is the median of its ends, from the beginning of the step.
    """

    identity: Identity
    occurrence: int
    lane: str
    runs: list[OperationRun | None]
    position: float = 0.0
    name: str = ""

    @property
    def is_collective(self) -> bool:
        """Whether all ranks of a group run it together."""
        return is_symmetric(self.identity)


@dataclass(slots=True)
class Rows:
    """The rows of a rank by their lane, in order, and the time of operations that few steps have."""

    lanes: dict[str, list[OperationRow]] = field(default_factory=dict)
    rare_ns: Counter[str] = field(default_factory=Counter)


def is_symmetric(identity: Identity) -> bool:
    """Return whether each rank of a group has its own event of this collective.

    TensorFlow's workers in one process have not: one of them sums the parts of all.
    """
    return identity.kind is TrackKind.COMMUNICATION and bool(
        COLLECTIVE.match(identity.op) or is_collective(identity.name)
    )


def lane_of(identity: Identity) -> str:
    """Return the lane of an operation: a device's stream, the link, or the pool of threads."""
    if identity.stream is not None:
        return f"{STREAM} {identity.stream}"
    return LINK if is_symmetric(identity) else COMPUTE


def rows_of(steps: Sequence[Sequence[OperationRun]]) -> Rows:
    """Return the rows of a rank, of the operations that at least half of its steps have, in no order yet."""
    runs: dict[Key, dict[int, OperationRun]] = defaultdict(dict)
    for step, own in enumerate(steps):
        for run in own:
            runs[run.identity, run.occurrence][step] = run
    found = Rows()
    for (identity, occurrence), by_step in runs.items():
        if 2 * len(by_step) < len(steps):
            found.rare_ns[identity.name] += sum(run.end_ns - run.start_ns for run in by_step.values())
            continue
        row = OperationRow(identity, occurrence, lane_of(identity), [by_step.get(step) for step in range(len(steps))])
        found.lanes.setdefault(row.lane, []).append(row)
    return found


def put_in_order(rows: Rows, windows: Sequence[Window]) -> None:
    """Sort the rows of each lane by the median of their ends, and name them."""
    names: Counter[tuple[str, str]] = Counter()
    for lane, own in rows.lanes.items():
        for row in own:
            ends = (run.end_ns - window.begin_ns for run, window in zip(row.runs, windows, strict=True) if run)
            row.position = median(ends)
        own.sort(key=lambda row: row.position)
        for row in own:
            names[lane, row.identity.name] += 1
            number = names[lane, row.identity.name]
            row.name = row.identity.name if number == 1 else f"{row.identity.name} #{number}"


def end_before_use(befores: Iterable[tuple[OperationRow, OperationRow]]) -> None:
    """Let an operation end before what depends on it begins; `befores` are pairs of an operation and an earlier one."""
    for row, other in befores:
        for step, (run, before) in enumerate(zip(row.runs, other.runs, strict=True)):
            if run and before and before.start_ns <= run.start_ns < before.end_ns:
                other.runs[step] = before._replace(end_ns=run.start_ns)


def end_before_work(rows: Rows, profiles: Iterable[Profile], lanes: Iterable[str]) -> None:
    """Let collectives that no program describes end when the device begins to work again, on these lanes."""
    described = {name for profile in profiles for name in profile.programs}
    collectives = [
        row for own in rows.lanes.values() for row in own if row.is_collective and row.identity.program not in described
    ]
    if not collectives:
        return
    busy = union(
        (run.start_ns, run.end_ns)
        for lane in lanes
        for row in rows.lanes[lane]
        for run in row.runs
        if run and not row.is_collective
    )
    for row in collectives:
        for step, run in enumerate(row.runs):
            if run and (end_ns := _work_after(busy, (run.start_ns, run.end_ns))):
                row.runs[step] = run._replace(end_ns=end_ns)


def _work_after(busy: list[Interval], collective: Interval) -> int | None:
    """Return when work begins near the end of a collective, after the device did nothing for most of it."""
    begin_ns, end_ns = collective
    length_ns = end_ns - begin_ns
    at = bisect_right(busy, (end_ns, 0)) - 1
    while at >= 0 and busy[at][0] > end_ns - REST * length_ns:
        idle_ns = busy[at][0] - max(begin_ns, busy[at - 1][1] if at else begin_ns)
        if idle_ns > IDLE * length_ns:
            return busy[at][0]
        at -= 1
    return None
