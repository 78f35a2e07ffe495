"""Which gradients DistributedDataParallel sums together, by its documented rule. Pure functions.

Gradients are appended to a bucket in the order in which the backward pass makes them, and a bucket is closed as soon as
its size reaches its capacity. (PyTorch 2.13: `compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/
reducer.cpp, `BucketCapacityConfig` in torch/nn/parallel/distributed.py.) This holds from the second step on: the first
one assumes the order of the parameters, reversed, and by default a single bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from keras_matrix.records.text import MIB

# Without a capacity of its own: 1 MiB for the first bucket, 25 MiB for the others.
DEFAULT_FIRST_BYTES, DEFAULT_BYTES = MIB, 25 * MIB


def capacities_bytes(cap_mb: float) -> list[int]:
    """Return the capacities of the first bucket, the second and so on; the last also applies to all others.

    `cap_mb` is in MiB, as PyTorch counts; 0 is the default.
    """
    return [int(cap_mb * MIB)] if cap_mb else [DEFAULT_FIRST_BYTES, DEFAULT_BYTES]


def by_capacity(sizes_bytes: Iterable[int], capacities: Sequence[int]) -> list[list[int]]:
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


def by_count(counts: Sequence[int]) -> list[list[int]]:
    """Return the positions of the gradients of buckets with these numbers of gradients."""
    return [list(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]


def capacities_of(counts: Sequence[int], sizes_bytes: Sequence[int]) -> list[int]:
    """Return the capacities that make buckets with these numbers of gradients: the size of each."""
    return [sum(sizes_bytes[at] for at in bucket) for bucket in by_count(counts)]
