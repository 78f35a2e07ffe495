"""Hand-made pieces and traces of ranks; times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall, Lane, Piece, RankTrace, Window

US = 1000


def work(name: str, start: float, end: float, lane: str = "host", step: int = 0) -> Piece:
    return Piece(lane, name, NodeKind.COMPUTE, round(start * US), round(end * US), step=step)


def wait(name: str, at: float, step: int = 0) -> Piece:
    return Piece("host", name, NodeKind.WAIT, round(at * US), round(at * US), step=step)


def together(name: str, start: float, end: float, call: CollectiveCall, step: int = 0) -> Piece:
    """A collective on a lane of its own."""
    piece = Piece("link", name, NodeKind.COMMUNICATION, round(start * US), round(end * US), step=step, cores=0.0)
    piece.call = call
    return piece


def all_reduce(size: int, ordinal: int = 0, group: str = "0", ranks: tuple[int, ...] = (0, 1)) -> CollectiveCall:
    return CollectiveCall("all_reduce", group, ranks, size, ordinal=ordinal)


def after(piece: Piece, *others: Piece) -> Piece:
    piece.after += others
    return piece


def trace(lanes: Mapping[str, Sequence[Lane]], steps: Sequence[tuple[float, float]], rank: int = 0) -> RankTrace:
    """A rank with these steps, each from begin to end."""
    windows = [Window(round(begin * US), round(end * US)) for begin, end in steps]
    return RankTrace(f"rank{rank}.json", rank, windows, {lane: list(pieces) for lane, pieces in lanes.items()}, "host")
