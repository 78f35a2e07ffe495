"""Pieces: what a lane of one rank did in one step, before the same operations of several steps become nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.whatif.graph import NodeKind

# A piece that is later than another begins this much before its end at most: the clocks of two sources differ.
TOLERANCE_NS = 20_000


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
    the marks of the steps, `periods` the times that they took, which may be those of a device (`periods.py`); `numbers`
    count the marked steps from 0, those that are left out included. `unfinished` says why the last step is none.
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
    found: list[Lane] = [[] for _ in range(steps)]
    for piece in pieces:
        found[piece.step].append(piece)
    return found
