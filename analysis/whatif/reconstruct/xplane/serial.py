"""The operations of a device that overlap on its thread pool, as one sequence that takes the same time.

XLA's and TensorFlow's CPU clients run several operations of a device at once, and each divides its work into tasks that
wait in the same pool. So the time of an operation's event is not its own: in place of 25 to 34 ms, lanes of threads
with these times replay to 18 to 21 ms. Here every moment in which a device works belongs to one operation, the running
one that ends first, as if the pool served the tasks in their order. These times add up to the time in which the device
worked, and an operation that starts before the end of the one before keeps its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

Interval = tuple[int, int]


def served_ns(intervals: Sequence[Interval]) -> list[int]:
    """Return the time that belongs to each of these intervals."""
    order = sorted(range(len(intervals)), key=lambda at: intervals[at])
    found = [0] * len(intervals)
    running: list[tuple[int, int]] = []
    now, following = 0, 0
    while following < len(order) or running:
        if not running:
            now = max(now, intervals[order[following]][0])
        while following < len(order) and intervals[order[following]][0] <= now:
            heappush(running, (intervals[order[following]][1], order[following]))
            following += 1
        end, at = running[0]
        until = min(end, intervals[order[following]][0]) if following < len(order) else end
        found[at] += max(0, until - now)
        now = max(now, until)
        while running and running[0][0] <= now:
            heappop(running)
    return found


def idle(busy: Sequence[Interval], window: Interval) -> list[Interval]:
    """Return the parts of a window outside of intervals that are sorted and do not overlap."""
    found, at = [], window[0]
    for begin, end in busy:
        if begin >= window[1]:
            break
        if begin > at:
            found.append((at, begin))
        at = max(at, end)
    if at < window[1]:
        found.append((at, window[1]))
    return found


def covered_ns(intervals: Sequence[Interval], within: Interval) -> int:
    """Return how much of an interval is covered by others, which are sorted and do not overlap."""
    return sum(max(0, min(end, within[1]) - max(begin, within[0])) for begin, end in intervals if begin < within[1])
