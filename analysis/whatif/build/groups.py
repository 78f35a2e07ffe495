"""Finds the process group of collectives whose events name none, where a rank is in several groups.

A collective runs when all ranks of its group have come to it. So a group is found by following all ranks from their
first collective on: the next of all members of a group must be the same operation with the same bytes, and overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.analysis.whatif.build.pieces import Piece, RankTrace
from keras_matrix.analysis.whatif.graph import GraphError


def assign(traces: Sequence[RankTrace], groups: Mapping[str, tuple[int, ...]], offsets_ns: Sequence[int]) -> None:
    """Set the group of each collective that has none. Raises `GraphError` if ranks call different collectives."""
    several = {name: ranks for name, ranks in groups.items() if len(ranks) > 1}
    for step in range(len(traces[0].windows)):
        queues = {trace.rank: _unknown(trace, step) for trace in traces}
        shifts = {trace.rank: offset_ns for trace, offset_ns in zip(traces, offsets_ns, strict=True)}
        while any(queues.values()):
            found = _next(queues, several, shifts)
            if found is None:
                rank = next(rank for rank, queue in queues.items() if queue)
                raise GraphError(
                    f"{traces[0].source}: step {step + 1}: {queues[rank][0].name!r} of rank {rank} belongs to no"
                    " process group whose other ranks call it, too; give the files of all ranks of the groups"
                )
            for rank in several[found]:
                if rank in queues and (call := queues[rank].pop(0).call) is not None:
                    call.group, call.ranks = found, several[found]


def _unknown(trace: RankTrace, step: int) -> list[Piece]:
    found = [piece for piece in trace.pieces(step) if piece.call is not None and not piece.call.group]
    return sorted(found, key=lambda piece: max((one.end_ns for one in piece.after), default=piece.start_ns))


def _next(
    queues: Mapping[int, Sequence[Piece]], groups: Mapping[str, tuple[int, ...]], shifts: Mapping[int, int]
) -> str | None:
    """Return a group whose members all come to the same collective next; the one that ends first."""
    found = []
    for name, ranks in groups.items():
        heads = [(queues[rank][0], shifts[rank]) for rank in ranks if queues.get(rank)]
        if not heads or len(heads) < sum(rank in queues for rank in ranks):
            continue
        kinds = {(piece.name, piece.call.bytes if piece.call else 0) for piece, _ in heads}
        latest_begin = max(piece.start_ns + shift for piece, shift in heads)
        if len(kinds) == 1:
            apart_ns = max(0, latest_begin - min(piece.end_ns + shift for piece, shift in heads))
            found.append((apart_ns, max(piece.end_ns + shift for piece, shift in heads), name))
    return min(found)[2] if found else None
