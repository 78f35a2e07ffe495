"""Pieces, what a lane of one rank did in one step, and the clocks of ranks and devices that their times need.

Ranks of one machine whose files contain marks with the machine's monotonic clock need nothing else: a mark is never
early, so that the smallest difference is the most accurate. The clocks of others are aligned by the ends of
collectives, at which all ranks of a group end together: the median of the differences, since single ends are late where
a thread waits for a core.

How long each step took, where a device works behind the thread that gives it work.

Thread and device have a clock each. A thread that only launches runs ahead of its device, until the device's queue is
full; a device that had work left over runs after its thread. So neither the marks of the thread nor the time from a
launch to its kernel is the time of a step. A step of the device lasts from the end of the last work of the step before
to the end of its own. Both clocks tick once a step, so that in the long run they are equal. In a short trace they
differ by what fills or empties the queue between them: then the device's is right, which has the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from keras_matrix.analysis.whatif.graph import NodeKind

# A piece that is later than another begins this much before its end at most: the clocks of two sources differ.
TOLERANCE_NS = 20_000
# Clocks that differ by less than this are equal; then the marks are used, which show where each step began.
EQUAL = 0.001


@dataclass(slots=True)
class CollectiveCall:
    """A rank's part of a collective. `elements` counts the complete array; `peer` is the other rank of a transfer."""

    operation: str
    group: str
    ranks: tuple[int, ...]
    bytes: int
    dtype: str | None = None
    peer: int = -1
    ordinal: int = 0
    tensors: tuple[int, ...] = ()
    tensor_layers: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Piece:
    """Work of a lane from `start_ns` to `end_ns` on its rank's clock; `after` must have ended before.

    A `WAIT` has no duration: it is the moment at which a wait ends. A collective's `start_ns` is when this rank
    joined. `ends_gradient`: a gradient is complete at the end, whose name is `gradient_of`.
    """

    lane: str
    name: str
    kind: NodeKind
    start_ns: int
    end_ns: int
    phase: str | None = None
    layer: str | None = None
    bytes: int | None = None
    flops: float | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    cores: float = 1.0
    ends_gradient: bool = False
    gradient_of: str | None = None
    call: CollectiveCall | None = None
    after: list[Piece] = field(default_factory=list)
    step: int = 0
    # When a device's work was issued by its thread, and what it is called there.
    issued_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """Its time."""
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class Window:
    """A step on the clock of a rank."""

    begin_ns: int
    end_ns: int

    @property
    def time_ns(self) -> int:
        """Its duration."""
        return self.end_ns - self.begin_ns


Lane = list[Piece]  # the pieces of a lane in one step, in their order


@dataclass(slots=True)
class RankTrace:
    """All pieces of a rank: for each lane a list for each step. `main` is the lane whose steps are marked.

    `parallel` names lanes that run several pieces at a time, and how many; `streams` those of a device. `windows` are
    the marks of the steps, `periods` the times that they took, which may be those of a device (`set_periods`);
    `numbers` count the marked steps from 0, those that are left out included. `unfinished` says why the last step is
    none.
    """

    source: str
    rank: int
    windows: list[Window]
    lanes: dict[str, list[Lane]]
    main: str
    parallel: dict[str, int] = field(default_factory=dict)
    caveats: list[str] = field(default_factory=list)
    streams: frozenset[str] = frozenset()
    periods: list[Window] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    unfinished: str | None = None

    def __post_init__(self) -> None:
        """Let steps last as long as their marks, one after another, unless something else is known."""
        self.periods = self.periods or [*self.windows]
        self.numbers = self.numbers or [*range(len(self.windows))]

    def follows(self, step: int) -> bool:
        """Return whether the step before this one is the one before it in the file."""
        return step > 0 and self.numbers[step] == self.numbers[step - 1] + 1

    def pieces(self, step: int) -> list[Piece]:
        """Return all pieces of a step."""
        return [piece for lane in self.lanes.values() for piece in lane[step]]


def collectives(trace: RankTrace, step: int) -> list[Piece]:
    """Return the collectives of a step, in the order in which their lanes have them."""
    return [piece for lane in trace.lanes.values() for piece in lane[step] if piece.call is not None]


def by_step(pieces: Sequence[Piece], steps: int) -> list[Lane]:
    """Return the pieces of each step, in their order."""
    lanes: list[Lane] = [[] for _ in range(steps)]
    for piece in pieces:
        lanes[piece.step].append(piece)
    return lanes


@dataclass(frozen=True, slots=True)
class Clock:
    """What a file says of its clock: pairs of its own and the machine's time, the machine, and its time base."""

    marks: Sequence[tuple[int, int]]
    host: str | None
    base_ns: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """What is added to each rank's clock, relative to the first rank's, and what is not known of it."""

    offsets_ns: tuple[int, ...]
    caveats: tuple[str, ...] = ()


def align(traces: Sequence[RankTrace], clocks: Sequence[Clock]) -> Alignment:
    """Return the offsets of the ranks."""
    if len(traces) < 2:
        return Alignment((0,) * len(traces))
    if all(clock.marks for clock in clocks) and len({clock.host for clock in clocks}) == 1:
        leads_ns = [min(own_ns - machine_ns for own_ns, machine_ns in clock.marks) for clock in clocks]
        return Alignment(tuple(leads_ns[0] - ahead_ns for ahead_ns in leads_ns))
    bases = [clock.base_ns - clocks[0].base_ns for clock in clocks]
    ends = [_ends(trace) for trace in traces]
    offsets = [0]
    unknown_ranks = []
    for trace, base_ns, rank_ends in zip(traces[1:], bases[1:], ends[1:], strict=True):
        shared_keys = ends[0].keys() & rank_ends.keys()
        if shared_keys:
            offsets.append(round(median(ends[0][key] - rank_ends[key] for key in shared_keys)))
        else:
            offsets.append(base_ns)
            unknown_ranks.append(trace.rank)
    caveat = f"the clocks of ranks {unknown_ranks} are not aligned: they share no collective with rank {traces[0].rank}"
    return Alignment(tuple(offsets), (caveat,) if unknown_ranks else ())


def _ends(trace: RankTrace) -> Mapping[tuple[str, int, int], int]:
    """Return the ends of a rank's collectives by their group, ordinal and step. A broadcast's root ends early."""
    return {
        (piece.call.group, piece.call.ordinal, step): piece.end_ns
        for step in range(len(trace.windows))
        for piece in trace.pieces(step)
        if piece.call is not None and piece.call.operation != "broadcast" and len(piece.call.ranks) > 1
    }


def set_periods(traces: Sequence[RankTrace], kept_steps: Sequence[int]) -> None:
    """Set the periods of the steps of all ranks; `kept_steps` are the positions of the steps that are not left out."""
    periods_by_device = [_of_device(trace, kept_steps) for trace in traces]
    counted_indices = range(min(1, len(kept_steps) - 1), len(kept_steps))
    marked_ns = max(sum(trace.windows[kept_steps[index]].time_ns for index in counted_indices) for trace in traces)
    device_ns = max(
        (sum(periods[index].time_ns for index in counted_indices) for periods in periods_by_device if periods),
        default=marked_ns,
    )
    if abs(device_ns - marked_ns) <= EQUAL * marked_ns:
        return
    for trace, periods in zip(traces, periods_by_device, strict=True):
        if periods:
            for step, period in zip(kept_steps, periods, strict=True):
                trace.periods[step] = period


def _of_device(trace: RankTrace, kept_steps: Sequence[int]) -> list[Window]:
    """Return the steps by the device's clock; nothing if one of them has no work of a device."""
    periods: list[Window] = []
    ends: list[int | None] = []
    for step in range(len(trace.windows)):
        pieces = [piece for lane in trace.streams for piece in trace.lanes[lane][step]]
        ends.append(max((piece.end_ns for piece in pieces), default=None))
        if step not in kept_steps:
            continue
        if (end_ns := ends[step]) is None:
            return []
        begin_ns = ends[step - 1] if step else None
        if begin_ns is None:  # nothing is known of the step before: no shorter than its mark and its own work
            begin_ns = min(end_ns - trace.windows[step].time_ns, *(piece.start_ns for piece in pieces))
        periods.append(Window(min(begin_ns, end_ns - 1), end_ns))
    return periods
