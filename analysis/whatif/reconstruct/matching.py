"""The same operation in successive steps: per lane, by name and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from keras_matrix.analysis.whatif.reconstruct.pieces import Lane, Piece

# A step that shares fewer of its operations with the others does something else, such as to start the program.
LEAST_SHARED = 0.8


class Matched(NamedTuple):
    """The pieces of each operation that all steps have, one for each step, and the time of others by their name."""

    rows: list[tuple[Piece, ...]]
    others_ns: Counter[str]


def match(steps: Sequence[Lane]) -> Matched:
    """Match the pieces of a lane. An operation that a step lacks, or has in another order, is one of the others."""
    names = [[piece.name for piece in lane] for lane in steps]
    reference = _usual(names)
    positions = [list(range(len(names[reference]))) if own is names[reference] else None for own in names]
    kept = set(range(len(names[reference])))
    aligned: list[dict[int, int]] = []
    for own, known in zip(names, positions, strict=True):
        pairs = dict(enumerate(known)) if known is not None else _aligned(names[reference], own)
        aligned.append(pairs)
        kept &= pairs.keys()
    rows = [tuple(lane[pairs[at]] for lane, pairs in zip(steps, aligned, strict=True)) for at in sorted(kept)]
    others: Counter[str] = Counter()
    for lane, pairs in zip(steps, aligned, strict=True):
        used = {pairs[at] for at in kept}
        for at, piece in enumerate(lane):
            if at not in used:
                others[piece.name] += piece.duration_ns
    return Matched(rows, others)


def unusual(steps: Sequence[Lane]) -> set[int]:
    """Return the steps of a lane that do something else than most, never all of them."""
    names = [[piece.name for piece in lane] for lane in steps]
    reference = _usual(names)
    usual = Counter(names[reference])
    found = set()
    for step, own in enumerate(names):
        shared = (usual & Counter(own)).total()
        if shared < LEAST_SHARED * max(len(own), usual.total()):
            found.add(step)
    return found


def _usual(names: Sequence[Sequence[str]]) -> int:
    """Return the step whose operations most steps have exactly; of several the last, which is the most settled."""
    counts = Counter(tuple(own) for own in names)
    return max(range(len(names)), key=lambda step: (counts[tuple(names[step])], step))


def _aligned(reference: Sequence[str], own: Sequence[str]) -> dict[int, int]:
    """Return the positions in a step by those in the reference, of the operations that both have in the same order."""
    if list(reference) == list(own):
        return {at: at for at in range(len(own))}
    least = min(len(reference), len(own))
    begin = next((at for at in range(least) if reference[at] != own[at]), least)
    end = next((at for at in range(least - begin) if reference[-1 - at] != own[-1 - at]), least - begin)
    pairs = {at: at for at in range(begin)}
    pairs |= {len(reference) - 1 - at: len(own) - 1 - at for at in range(end)}
    middle = SequenceMatcher(None, reference[begin : len(reference) - end], own[begin : len(own) - end], autojunk=False)
    for block in middle.get_matching_blocks():
        pairs |= {begin + block.a + at: begin + block.b + at for at in range(block.size)}
    return pairs
