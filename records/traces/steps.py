"""Which marked step of a profiler's file is none: the last one, if the profiler stopped within it.

`torch.profiler` marks a step from each call of `step()` to the next one, and the last until it stops. So a loop that
ends before its schedule does leaves a mark in which nothing, or only the beginning of a step, has happened. A device
may still be at work on the last step when the profiler of JAX or TensorFlow stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

# A last step with less than this share of the operations of the step before has done something else, if anything.
FEW = 0.1
MOST = 0.8


def is_unfinished(steps: Sequence[Sequence[str]]) -> bool:
    """Return whether the last of several steps is unfinished, by the names of what each did, in order.

    It is the beginning of the step before, but of no other step the whole, or nearly nothing of it.
    """
    if len(steps) < 2:
        return False
    last, before = list(steps[-1]), list(steps[-2])
    if len(last) >= len(before) or any(last == list(other) for other in steps[:-1]):
        return False
    # The operation in which the profiler stopped may be divided in another way.
    return last[:-1] == before[: len(last) - 1] or len(last) < FEW * len(before)


def is_part(steps: Sequence[Counter[T]]) -> bool:
    """Return whether the last of several steps has only a part of the operations of the step before.

    For operations without an order, such as those of a program on a pool of threads.
    """
    if len(steps) < 2:
        return False
    last, before = steps[-1], steps[-2]
    return last <= before and last.total() < MOST * before.total() and last not in steps[:-1]
