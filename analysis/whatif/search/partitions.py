"""Contiguous partitions of gradients that end early on one link, by dynamic programming without replay.

A gradient j is complete at r(j); a bucket that ends with it starts then, or when the bucket before it has ended. For
buckets that follow one another on a link that nothing else uses, the partition found is optimal: the end of the last
bucket is a non-decreasing function of the end of those before. It is a good beginning for a search by replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

Partition = tuple[int, ...]  # the number of gradients of each bucket


def earliest(ready: Sequence[float], time: Callable[[int, int], float], most_buckets: int) -> list[Partition]:
    """Return the partition that ends first for each number of buckets from 1 to `most_buckets`.

    `ready` is when each gradient is complete, `time(i, j)` how long the sum of gradients i to j - 1 takes.
    """
    count = len(ready)
    complete = [max(ready[: at + 1]) for at in range(count)]
    took = [[time(begin, end) if begin < end else 0.0 for end in range(count + 1)] for begin in range(count)]
    ends = [0.0 if not at else inf for at in range(count + 1)]
    choices: list[list[int]] = []
    found = []
    for buckets in range(1, min(most_buckets, count) + 1):
        following, chosen = [inf] * (count + 1), [0] * (count + 1)
        for end in range(buckets, count + 1):
            available = complete[end - 1]
            for begin in range(buckets - 1, end):
                finish = max(ends[begin], available) + took[begin][end]
                if finish < following[end]:
                    following[end], chosen[end] = finish, begin
        ends = following
        choices.append(chosen)
        found.append(_traced(choices, count))
    return found


def _traced(choices: Sequence[Sequence[int]], count: int) -> Partition:
    sizes = []
    end = count
    for chosen in reversed(choices):
        sizes.append(end - chosen[end])
        end = chosen[end]
    return tuple(reversed(sizes))


def neighbours(partition: Partition) -> list[Partition]:
    """Return partitions that differ by a moved boundary, a merged pair of buckets or a bucket cut in the middle."""
    found: list[Partition] = []
    for at, (left, right) in enumerate(pairwise(partition)):
        for moved in (-1, 1):
            if left + moved > 0 and right - moved > 0:
                found.append((*partition[:at], left + moved, right - moved, *partition[at + 2 :]))
        found.append((*partition[:at], left + right, *partition[at + 2 :]))
    for at, size in enumerate(partition):
        if size > 1:
            found.append((*partition[:at], size // 2, size - size // 2, *partition[at + 1 :]))
    return found
