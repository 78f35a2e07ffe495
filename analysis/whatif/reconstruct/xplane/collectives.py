"""Numbers collectives, so that all ranks of a group agree which is which, and counts how many of them overlap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank
from keras_matrix.analysis.whatif.reconstruct.xplane.rows import Row

Name = tuple[str, str, str, int]  # group, program, operation and occurrence: equal on all ranks of the group


def number(ranks: Sequence[Rank]) -> None:
    """Number the collectives of each group in the order of their ends. Raises `GraphError` if a rank lacks one."""
    members: dict[Name, dict[int, Row]] = defaultdict(dict)
    for rank in ranks:
        for row, pieces in _collectives(rank):
            call = pieces[0].call
            identity = row.identity
            if call is not None:
                program = identity.program.partition("(")[0]
                members[call.group, program, identity.name, row.occurrence][rank.number] = row
    _check(ranks, members)
    order = sorted(members, key=lambda name: fmean(row.position for row in members[name].values()))
    ordinals: dict[str, int] = defaultdict(int)
    places: dict[int, int] = {}
    for at, name in enumerate(order):
        for rank in ranks:
            if (own := members[name].get(rank.number)) is not None:
                places[id(own)] = at
                for piece in rank.pieces[id(own)]:
                    if piece.call is not None:
                        piece.call.ordinal = ordinals[name[0]]
        ordinals[name[0]] += 1
    for rank in ranks:
        _sort(rank, places)


def _collectives(rank: Rank) -> list[tuple[Row, list[Piece]]]:
    return [(row, rank.pieces[id(row)]) for rows in rank.rows.lanes.values() for row in rows if row.is_collective]


def _check(ranks: Sequence[Rank], members: dict[Name, dict[int, Row]]) -> None:
    present = {rank.number: rank for rank in ranks}
    for (group, _, name, _), rows in members.items():
        first = next(iter(rows))
        call = present[first].pieces[id(rows[first])][0].call
        wanted = set(call.ranks if call else ()) & set(present)
        for lacking in sorted(wanted - set(rows)):
            path = present[lacking].profiles[0].path
            raise GraphError(
                f"{path}: rank {lacking} has no collective {name!r} of group {group!r}, which rank {first} has; record"
                " all ranks at the same time"
            )


def _sort(rank: Rank, places: dict[int, int]) -> None:
    """Bring lanes of collectives alone into the order that all ranks have."""
    for lane, rows in rank.rows.lanes.items():
        if lane not in rank.chains and all(id(row) in places for row in rows):
            rows.sort(key=lambda row: places[id(row)])
            for step in range(len(rank.lanes[lane])):
                rank.lanes[lane][step] = [rank.pieces[id(row)][step] for row in rows]


def concurrent(ranks: Sequence[Rank]) -> dict[str, int]:
    """Return the lanes that run several collectives at a time, and how many.

    A collective runs from when the last rank has come to it.
    """
    calls = [
        (rank.number, piece, piece.call)
        for rank in ranks
        for row, pieces in _collectives(rank)
        if row.lane not in rank.chains
        for piece in pieces
        if piece.call is not None
    ]
    begins: dict[tuple[str, int, int], int] = defaultdict(int)
    for _, piece, call in calls:
        key = call.group, call.ordinal, piece.step
        begins[key] = max(begins[key], piece.start_ns)
    running: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for number_of_rank, piece, call in calls:
        begin_ns = begins[call.group, call.ordinal, piece.step]
        if piece.end_ns > begin_ns:
            running[number_of_rank, piece.lane] += [(begin_ns, 1), (piece.end_ns, -1)]
    found: dict[str, int] = {}
    for (_, lane), changes in running.items():
        most = max(accumulate(change for _, change in sorted(changes)))
        if most > 1:
            found[lane] = max(most, found.get(lane, 1))
    return found
