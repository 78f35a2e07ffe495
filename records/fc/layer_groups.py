"""Groups of the layers or gradients of an FC problem, as they are written in a matrix file. Pure functions.

Layers are numbered from 0, the first one. Gradients are counted in the order in which the backward pass makes them:
that of the last layer first.

Which gradients DistributedDataParallel sums together, by its documented rule. Pure functions.

Gradients are appended to a bucket in the order in which the backward pass makes them, and a bucket is closed as soon as
its size reaches its capacity. (PyTorch 2.13: `compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/
reducer.cpp, `BucketCapacityConfig` in torch/nn/parallel/distributed.py.) This holds from the second step on: the first
one assumes the order of the parameters, reversed, and by default a single bucket.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from keras_matrix.records.text import MIB

_COUNTS = re.compile(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", re.ASCII)
_RANGES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", re.ASCII)
# Without a capacity of its own: 1 MiB for the first bucket, 25 MiB for the others.
DEFAULT_FIRST_BYTES, DEFAULT_BYTES = MIB, 25 * MIB


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


def capacities_bytes(cap_mb: float) -> list[int]:
    """Return the capacities of the first bucket, the second and so on; the last also applies to all others.

    `cap_mb` is in MiB, as PyTorch counts; 0 is the default.
    """
    return [int(cap_mb * MIB)] if cap_mb else [DEFAULT_FIRST_BYTES, DEFAULT_BYTES]


def buckets_by_capacity(sizes_bytes: Iterable[int], capacities: Sequence[int]) -> list[list[int]]:
    """Return the positions of the gradients of each bucket, given their sizes in the order of the backward pass."""
    found: list[list[int]] = []
    open_bytes = 0
    for at, size in enumerate(sizes_bytes):
        if not open_bytes:
            found.append([])
        found[-1].append(at)
        open_bytes += size
        if open_bytes >= capacities[min(len(found), len(capacities)) - 1]:
            open_bytes = 0
    return found


def buckets_by_count(counts: Sequence[int]) -> list[list[int]]:
    """Return the positions of the gradients of buckets with these numbers of gradients."""
    return [list(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]


def capacities_of(counts: Sequence[int], sizes_bytes: Sequence[int]) -> list[int]:
    """Return the capacities that make buckets with these numbers of gradients: the size of each."""
    return [sum(sizes_bytes[at] for at in bucket) for bucket in buckets_by_count(counts)]
