"""Divides the time of a trace's steps into parts that add up to it exactly.

A moment in which one operation runs belongs to that operation, of nested ones to the innermost. A moment in which
several run, on several threads or streams, is divided equally among them: so the parts add up to the time that has
passed, unlike the operations' own times (`analysis.traces`), which exceed it. A moment without an operation is a fetch
of a batch if the program marks it as one, else a gap within a step, else the time between two steps.

A step lasts from its begin to that of the next one; the last one of an epoch until its work has ended. A program that
dispatches its steps in advance so begins the work of a step within another one: only the sums over an epoch are exact.
Several workers are averaged. Not known: what a gap consists of.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from keras_matrix.analysis.traces import Worked, WorkerSpans, own_times, read_workers
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import MOST_NS, Head, Span


class Place(StrEnum):
    """Where a moment of a step is spent. The first three are kinds of tracks, on which operations run."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    INPUT = "waiting for input"
    GAP = "between operations"
    BETWEEN = "between steps"


WORKING = frozenset({Place.COMPUTE, Place.COMMUNICATION, Place.COPY})


class PartKey(NamedTuple):
    """What identifies a part; waits and gaps have a place only."""

    place: Place
    phase: str | None = None
    layer: str | None = None
    op: str | None = None


# In the order in which they are found; the last one needs no mark.
IDLE = (PartKey(Place.INPUT), PartKey(Place.GAP), PartKey(Place.BETWEEN))
Event = tuple[int, int, PartKey | None]  # a time, 1 or -1, and what begins or ends then


class Call(NamedTuple):
    """The parts of one call of the backend: the time of each in ns, and how often it occurs."""

    times_ns: dict[PartKey, float]
    counts: Counter[PartKey]


@dataclass(frozen=True, slots=True)
class Part:
    """The time of a part in each step, in seconds, and how often it occurs in a step.

    An operation that only calls others is not counted.
    """

    times_s: tuple[float, ...]
    count: float

    @property
    def mean_s(self) -> float:
        """Its mean over the steps."""
        return statistics.fmean(self.times_s)

    def scaled(self, factor: float) -> Part:
        """Return it with this share of its time."""
        return replace(self, times_s=tuple(time_s * factor for time_s in self.times_s))


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a trace's steps, in the order in which they first run."""

    backend: str
    device: str
    parts: dict[PartKey, Part]

    @property
    def step_time_s(self) -> float:
        """The mean time of a step, with the profiler on: the sum of its parts."""
        return sum(part.mean_s for part in self.parts.values())

    @property
    def layers(self) -> list[str]:
        """The layers, in the order in which they first run."""
        return list(dict.fromkeys(key.layer for key in self.parts if key.layer is not None))

    @property
    def operations(self) -> float:
        """The number of operations in a step."""
        return sum(part.count for key, part in self.parts.items() if key.place in WORKING)


def read_parts(path: Path, steps_a_call: int = 1) -> StepParts:
    """Return the parts of the trace at `path`, a call of the backend being so many steps. Raises `TraceError`."""
    return parts_of(neutral.head_of(path), neutral.spans(path), steps_a_call)


def parts_of(head: Head, spans: Iterable[Span], steps_a_call: int = 1) -> StepParts:
    """Return the parts of the spans of a trace."""
    _, workers = read_workers(head, spans)
    calls = [call for worker in workers for call in _calls(worker)]
    times: dict[PartKey, list[float]] = {}
    counts: Counter[PartKey] = Counter()
    for number, call in enumerate(calls):
        for key, time_ns in call.times_ns.items():
            times.setdefault(key, [0.0] * len(calls))[number] += time_ns / 1e9 / steps_a_call
        counts.update(call.counts)
    each = max(1, len(calls)) * steps_a_call
    parts = {key: Part(tuple(times_s), counts[key] / each) for key, times_s in times.items()}
    return StepParts(head.backend, head.device, parts)


def _calls(worker: WorkerSpans) -> Iterator[Call]:
    """Yield the parts of each step of a worker."""
    begins = [begin for begin, _ in worker.steps]
    keys = [PartKey(Place(kind), phase, layer, op) for op, layer, phase, kind in worker.keys]
    marks = [(*fetch, PartKey(Place.INPUT)) for fetch in worker.fetches]
    marks += [(*step, PartKey(Place.GAP)) for step in worker.steps]
    for begin, end in worker.windows:
        bounds = [begin, *begins[bisect_left(begins, begin + 1) : bisect_left(begins, end)], end]
        tracks = [list(track.between((begin, end))) for track in worker.tracks]
        working = [one for track in tracks for one in _innermost(track)]
        counted = sorted(one for track in tracks for one in _working(track))
        events = _cut([*marks, *((start, stop, keys[number]) for start, stop, number in working)], bounds)
        for (first, after), own in zip(pairwise(bounds), events, strict=True):
            numbers = counted[bisect_left(counted, (first, 0)) : bisect_left(counted, (after, 0))]
            yield _divided(own, Counter(keys[number] for _, number in numbers))


def _cut(segments: Iterable[tuple[int, int, PartKey]], bounds: Sequence[int]) -> list[list[Event]]:
    """Return where segments begin and end between each pair of bounds, and the bounds."""
    events: list[list[Event]] = [[(begin, 0, None), (end, 0, None)] for begin, end in pairwise(bounds)]
    for start, stop, key in segments:
        first = max(0, bisect_right(bounds, start) - 1)
        for number in range(first, min(bisect_left(bounds, stop), len(events))):
            events[number].append((max(start, bounds[number]), 1, key))
            events[number].append((min(stop, bounds[number + 1]), -1, key))
    return events


def _divided(events: Iterable[Event], counts: Counter[PartKey]) -> Call:
    """Return the parts of a step; `counts` are those of the operations that begin in it."""
    times_ns: dict[PartKey, float] = {}
    open_now: Counter[PartKey] = Counter()
    before: int | None = None
    last: PartKey | None = None
    for at, change, key in sorted(events, key=itemgetter(0)):
        if before is not None and at > before:
            running = [one for one in open_now.elements() if one.place in WORKING]
            idle = None if running else next((one for one in IDLE if open_now[one]), IDLE[-1])
            for one in [idle] if idle else running:
                times_ns[one] = times_ns.get(one, 0.0) + (at - before) / max(1, len(running))
            if idle and idle is not last:
                counts[idle] += 1
            last = idle
        before = at
        if key is not None:
            open_now[key] += change
    return Call(times_ns, counts)


def _working(spans: Iterable[Worked]) -> Iterator[tuple[int, int]]:
    """Yield begin and key of the spans of a track that do most of their work themselves, not by calling others."""
    return ((start, key) for (start, end, key), own_ns in own_times(spans) if 2 * own_ns >= end - start)


def _innermost(spans: Iterable[Worked]) -> Iterator[Worked]:
    """Yield the times in which each span of a track is the innermost one, in order."""
    stack: list[tuple[int, int]] = []  # end, key
    at = 0
    for start, end, key in chain(spans, [(MOST_NS, MOST_NS, 0)]):
        while stack and stack[-1][0] <= start:
            stop, own = stack.pop()
            if at < stop:
                yield at, stop, own
                at = stop
        if stack and at < start:
            yield at, start, stack[-1][1]
        at = start
        stack.append((end, key))
