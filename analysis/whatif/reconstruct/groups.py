"""Finds the process group of collectives whose events name none, where a rank is in several groups.

A collective runs when all ranks of its group have come to it. So a group is found by following all ranks from their
first collective on: the next of all members of a group must be the same operation with the same bytes. Of several such
groups it is the one whose ranks were in the collective at the same time, over all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece, RankTrace

Row = tuple[Piece, ...]  # a collective of a rank, one piece for each step


def assign(traces: Sequence[RankTrace], groups: Mapping[str, tuple[int, ...]], offsets_ns: Sequence[int]) -> None:
    """Set the group of each collective that has none. Raises `GraphError` if ranks call different collectives."""
    several = {name: ranks for name, ranks in groups.items() if len(ranks) > 1}
    queues = {trace.rank: _unknown(trace) for trace in traces}
    shifts = {trace.rank: offset_ns for trace, offset_ns in zip(traces, offsets_ns, strict=True)}
    while any(queues.values()):
        found = _next(queues, several, shifts)
        if found is None:
            trace = next(trace for trace in traces if queues[trace.rank])
            raise GraphError(
                f"{trace.source}: {queues[trace.rank][0][0].name!r} of rank {trace.rank} belongs to no process group"
                " whose other ranks call it, too; give the files of all ranks of the groups"
            )
        for rank in several[found]:
            for piece in queues[rank].pop(0) if rank in queues else ():
                if piece.call is not None:
                    piece.call.group, piece.call.ranks = found, several[found]


def _unknown(trace: RankTrace) -> list[Row]:
    """Return the collectives without a group, in the order in which they were started. Raises `GraphError`."""
    steps = []
    for step in range(len(trace.windows)):
        found = [piece for piece in trace.pieces(step) if piece.call is not None and not piece.call.group]
        steps.append(sorted(found, key=lambda one: max((before.end_ns for before in one.after), default=one.start_ns)))
    counts = [len(pieces) for pieces in steps]
    if len(set(counts)) > 1:
        step = next(step for step, count in enumerate(counts) if count != counts[0])
        raise GraphError(
            f"{trace.source}: rank {trace.rank} has {counts[step]} collectives in step {step + 1}, {counts[0]} in the"
            " first; record steps that do the same"
        )
    return list(zip(*steps, strict=True))


def _next(
    queues: Mapping[int, Sequence[Row]], groups: Mapping[str, tuple[int, ...]], shifts: Mapping[int, int]
) -> str | None:
    """Return a group whose members all come to the same collective next: of several the one that fits the times."""
    found = []
    for name, ranks in groups.items():
        own = [rank for rank in ranks if rank in queues]
        heads = [(queues[rank][0], shifts[rank]) for rank in own if queues[rank]]
        kinds = {(row[0].name, row[0].call.bytes if row[0].call else 0) for row, _ in heads}
        if heads and len(heads) == len(own) and len(kinds) == 1:
            found.append((*_apart(heads), name))
    return min(found)[2] if found else None


def _apart(heads: Sequence[tuple[Row, int]]) -> tuple[int, int]:
    """Return for how long ranks were not in a collective at the same time, over all steps, and when it ended."""
    apart_ns = ended_ns = 0
    for step in range(len(heads[0][0])):
        begins = [row[step].start_ns + shift for row, shift in heads]
        ends = [row[step].end_ns + shift for row, shift in heads]
        apart_ns += max(0, max(begins) - min(ends))
        ended_ns += max(ends)
    return apart_ns, ended_ns
