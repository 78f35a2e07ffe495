"""Runs of operations of a rank as one, where their own times are not needed or cannot be separated.

A segment is a run of successive operations with the same phase and layer; those without a phase or a layer belong to
the run that they are in. It ends where another lane or rank waits for one of them, and begins where one of them waits.
Its time is the sum of theirs; the gaps within it are before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import Lane, Piece, RankTrace
from keras_matrix.analysis.whatif.reconstruct.xplane.inferred import Link, Place

Number = TypeVar("Number", int, float)


def merge(traces: Sequence[RankTrace], links: Sequence[Link]) -> list[Link]:
    """Merge the operations of each rank's main lane; return the links between the segments."""
    waiting = {link.waiting for link in links}
    awaited = {link.before for link in links}
    renamed: dict[Place, Place] = {}
    for trace in traces:
        cuts = _Cuts(trace, waiting, awaited)
        runs = _runs(trace.lanes[trace.main][0], cuts)
        names = _names(trace.lanes[trace.main][0], runs)
        merged: dict[int, Piece] = {}
        for step, lane in enumerate(trace.lanes[trace.main]):
            pieces = [_merged([lane[at] for at in run], name) for run, name in zip(runs, names, strict=True)]
            for run, piece in zip(runs, pieces, strict=True):
                merged |= {id(lane[at]): piece for at in run}
                if step == 0:
                    renamed |= {
                        Place(trace.rank, trace.main, lane[at].name): Place(trace.rank, trace.main, piece.name)
                        for at in run
                    }
            trace.lanes[trace.main][step] = pieces
        for step in range(len(trace.windows)):
            for piece in trace.pieces(step):
                piece.after = list({id(one): one for one in (merged.get(id(old), old) for old in piece.after)}.values())
    return [Link(renamed.get(link.waiting, link.waiting), renamed.get(link.before, link.before)) for link in links]


class _Cuts:
    """Where a segment has to begin or to end."""

    def __init__(self, trace: RankTrace, waiting: set[Place], awaited: set[Place]) -> None:
        self._trace, self._waiting, self._awaited = trace, waiting, awaited
        self._targets = {
            id(before)
            for piece in trace.pieces(0)
            if piece.lane != trace.main or piece.call is not None
            for before in piece.after
        }

    def before(self, piece: Piece) -> bool:
        """Return whether one begins with this operation."""
        return bool(piece.after) or self._place(piece) in self._waiting or piece.kind is not NodeKind.COMPUTE

    def after(self, piece: Piece) -> bool:
        """Return whether one ends with this operation."""
        is_awaited = id(piece) in self._targets or self._place(piece) in self._awaited
        return is_awaited or piece.kind is not NodeKind.COMPUTE

    def _place(self, piece: Piece) -> Place:
        return Place(self._trace.rank, piece.lane, piece.name)


def _runs(lane: Lane, cuts: _Cuts) -> list[list[int]]:
    """Return the positions of the operations of each segment."""
    found: list[list[int]] = []
    is_open = False
    phase: str | None = None
    layer: str | None = None
    for at, piece in enumerate(lane):
        fits = piece.phase in (None, phase or piece.phase) and piece.layer in (None, layer or piece.layer)
        if not is_open or not fits or cuts.before(piece):
            found.append([])
            phase = layer = None
        found[-1].append(at)
        phase, layer = phase or piece.phase, layer or piece.layer
        is_open = not cuts.after(piece)
    return found


def _names(lane: Lane, runs: Sequence[Sequence[int]]) -> list[str]:
    """Return a name for each segment that no other one has."""
    counts: Counter[str] = Counter()
    found = []
    for run in runs:
        pieces = [lane[at] for at in run]
        words = (_first(piece.phase for piece in pieces), _first(piece.layer for piece in pieces))
        name = pieces[0].name if len(pieces) == 1 else " ".join(word for word in words if word) or "operations"
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return found


def _merged(pieces: Sequence[Piece], name: str) -> Piece:
    """Return one piece with the work of these, which ends with the last of them."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        first.name = name
        return first
    return replace(
        first,
        name=name,
        start_ns=last.end_ns - sum(piece.duration_ns for piece in pieces),
        end_ns=last.end_ns,
        phase=_first(piece.phase for piece in pieces),
        layer=_first(piece.layer for piece in pieces),
        bytes=_total([piece.bytes for piece in pieces]),
        flops=_total([piece.flops for piece in pieces]),
        dtype=_first(piece.dtype for piece in pieces),
        shape=None,
        gradient_of=_first(piece.gradient_of for piece in reversed(pieces)),
        after=list(first.after),
    )


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value is not None), None)


def _total(values: Sequence[Number | None]) -> Number | None:
    """Return the sum, None if a value is not known."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None
