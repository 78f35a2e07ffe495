"""Groups of the layers or gradients of an FC problem, as they are written in a matrix file. Pure functions.

Layers are numbered from 0, the first one. Gradients are counted in the order in which the backward pass makes them:
that of the last layer first.
"""

from __future__ import annotations

import math
import re

_COUNTS = re.compile(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", re.ASCII)
_RANGES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", re.ASCII)


def counts(text: str) -> tuple[int, ...]:
    """Return the sizes of the groups in a text such as `3,5,2`; none for "". Raises `ValueError`."""
    if not text:
        return ()
    if not _COUNTS.fullmatch(text):
        raise ValueError(f"must be counts such as 3,5,2, got {text}")
    return tuple(map(int, text.split(",")))


def blocks(text: str) -> tuple[range, ...]:
    """Return the blocks of layers in a text such as `0-3,4,6-7`; none for "".

    Raises `ValueError` unless they ascend without sharing a layer.
    """
    if not text:
        return ()
    if not _RANGES.fullmatch(text):
        raise ValueError(f"must be layers such as 0-3,6, got {text}")
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.append(range(int(first), int(last or first) + 1))
    ends = [0, *(block.stop for block in found)]
    if any(block.start < end or not block for block, end in zip(found, ends, strict=False)):
        raise ValueError(f"must be in ascending order, each layer at most once, got {text}")
    return tuple(found)


def layers(text: str) -> frozenset[int]:
    """Return the layers in a text such as `0-3,6`. Raises `ValueError`."""
    return frozenset(layer for block in blocks(text) for layer in block)


def segments(count: int, fused: str, *, recompute: bool) -> list[list[range]]:
    """Return the layers as units, by segment; a unit is a block that is compiled as one program, or another layer.

    All are one segment, or to be recomputed about as many segments as each has units (Chen et al., "Training deep nets
    with sublinear memory cost", 2016).
    """
    starting = {block.start: block for block in blocks(fused)}
    units: list[range] = []
    while (at := units[-1].stop if units else 0) < count:
        units.append(starting.get(at, range(at, at + 1)))
    size = math.ceil(math.sqrt(len(units))) if recompute else len(units)
    return [units[at : at + size] for at in range(0, len(units), size)]
