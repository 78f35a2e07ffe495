"""The same operation in all steps of a rank, in an order that the steps share.

Threads race: operations that do not depend on each other end in another order in each step. Here all steps have one
order, that of the median times of the ends, which keeps the order of dependencies.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from keras_matrix.analysis.whatif.build.pieces import Window
from keras_matrix.analysis.whatif.build.xplane.reading import Identity, Run
from keras_matrix.records.traces.names import is_collective
from keras_matrix.records.traces.neutral import Kind
from keras_matrix.records.traces.xspace.tracks import COLLECTIVE

COMPUTE, LINK, STREAM = "compute", "link", "stream"
Key = tuple[Identity, int]


@dataclass(slots=True)
class Row:
    """An operation of a rank: its lane, a name that no other has there, and its runs, None in a step without it.

    `position` is the median of its ends, from the beginning of the step.
    """

    identity: Identity
    occurrence: int
    lane: str
    runs: list[Run | None]
    position: float = 0.0
    name: str = ""

    @property
    def is_collective(self) -> bool:
        """Whether all ranks of a group run it together."""
        return is_symmetric(self.identity)


@dataclass(slots=True)
class Rows:
    """The rows of a rank by their lane, in order, and the time of operations that few steps have."""

    lanes: dict[str, list[Row]] = field(default_factory=dict)
    rare_ns: Counter[str] = field(default_factory=Counter)


def is_symmetric(identity: Identity) -> bool:
    """Return whether each rank of a group has its own event of this collective.

    TensorFlow's workers in one process have not: one of them sums the parts of all.
    """
    return identity.kind is Kind.COMMUNICATION and bool(COLLECTIVE.match(identity.op) or is_collective(identity.name))


def lane_of(identity: Identity) -> str:
    """Return the lane of an operation: a device's stream, the link, or the pool of threads."""
    if identity.stream is not None:
        return f"{STREAM} {identity.stream}"
    return LINK if is_symmetric(identity) else COMPUTE


def rows_of(steps: Sequence[Sequence[Run]]) -> Rows:
    """Return the rows of a rank, of the operations that at least half of its steps have, in no order yet."""
    runs: dict[Key, dict[int, Run]] = defaultdict(dict)
    for step, own in enumerate(steps):
        for run in own:
            runs[run.identity, run.occurrence][step] = run
    found = Rows()
    for (identity, occurrence), by_step in runs.items():
        if 2 * len(by_step) < len(steps):
            found.rare_ns[identity.name] += sum(run.end_ns - run.start_ns for run in by_step.values())
            continue
        row = Row(identity, occurrence, lane_of(identity), [by_step.get(step) for step in range(len(steps))])
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
