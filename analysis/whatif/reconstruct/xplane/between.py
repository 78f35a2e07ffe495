"""What a rank waits for on other ranks of the same process, besides collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.whatif.graph import Node
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece
from keras_matrix.analysis.whatif.reconstruct.xplane.inferred import Link, NodePlace, between_ranks
from keras_matrix.analysis.whatif.reconstruct.xplane.rank import Rank


def links(ranks: Sequence[Rank]) -> list[Link]:
    """Return what ranks wait for on others: their sums, and at the end of a step the last operations of all."""
    found: list[Link] = []
    for rank in ranks:
        own = [other for other in ranks if other.profiles is rank.profiles]
        if rank is own[0] and len(own) > 1:
            found += between_ranks(own)
            for one in own:
                found += [
                    Link(_place(one, one.returns[0]), _place(other, last))
                    for other in own
                    for last in _last(other)
                    if other is not one
                ]
        for lane in rank.lanes:
            if lane != rank.main:
                for step, piece in enumerate(rank.returns):
                    if rank.lanes[lane][step]:
                        piece.after.append(rank.lanes[lane][step][-1])
    return found


def _last(rank: Rank) -> list[Piece]:
    """Return the last operation of each lane, without the host's return."""
    lanes = [[piece for piece in steps[0] if piece is not rank.returns[0]] for steps in rank.lanes.values()]
    return [lane[-1] for lane in lanes if lane]


def _place(rank: Rank, piece: Piece) -> NodePlace:
    return NodePlace(rank.number, piece.lane, piece.name)


def connected(nodes: Sequence[Node], found: Sequence[Link]) -> list[Node]:
    """Return the nodes with these dependencies, and gaps without the time in which they waited for them."""
    numbers = {NodePlace(node.rank, node.lane, node.name): node.number for node in nodes}
    changed = list(nodes)
    for link in found:
        waiting, before = numbers.get(link.waiting), numbers.get(link.before)
        if waiting is None or before is None or waiting == before:
            continue
        node, other = changed[waiting], changed[before]
        ends = [start + length for start, length in zip(other.starts_ns, other.durations_ns, strict=True)]
        gaps = [
            max(0, min(gap, start - end)) for gap, start, end in zip(node.gaps_ns, node.starts_ns, ends, strict=True)
        ]
        changed[waiting] = replace(node, depends=(*node.depends, before), gaps_ns=tuple(gaps))
    return changed
