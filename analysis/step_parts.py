"""Divides the time of a trace's steps into parts that add up to it exactly.

A moment in which one operation runs belongs to that operation, of nested ones to the innermost. A moment in which
several run, on several threads or streams, is divided equally among them: so the parts add up to the time that has
passed, unlike the operations' own times (`analysis.traces`), which exceed it. A moment without an operation is a fetch
of a batch if the program marks it as one, else a gap within a step, else the time between two steps.

An operation counts for the step that it belongs to, whenever it runs; if this is not known, and for waits and gaps, it
is the step that the program has begun last. An epoch lasts until the work of its steps has ended. Several workers are
averaged. Not known: what a gap consists of.

Pairs the parts of two traces: which operation of one side is which of the other.

Two sides of one backend are paired by phase, layer and operation; equal ones are counted, so that their order within
a layer does not matter. What has no partner, such as a renamed kernel, is a row of its own, and is compared with the
others of its layer and phase. Two backends have different operations: they are paired by phase and layer only.

A layer with another name is paired with the layer at the same place between two layers with equal names, if as many
were replaced. Not known: an operation that a compiler moved from one layer into a fusion of another.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from keras_matrix.analysis.history.sessions import summed
from keras_matrix.analysis.stats.blocks import CONFIDENCE, t_quantile
from keras_matrix.analysis.traces import Window, Worked, WorkerSpans, own_times, read_workers
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import MOST_NS, Head, Span

_HASH = re.compile(r"\b[0-9a-z]{30,}\b")


class TrackPlace(StrEnum):
    """Where a moment of a step is spent. The first three are kinds of tracks, on which operations run."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"
    INPUT = "waiting for input"
    GAP = "between operations"
    BETWEEN = "between steps"


WORKING = frozenset({TrackPlace.COMPUTE, TrackPlace.COMMUNICATION, TrackPlace.COPY})


class PartKey(NamedTuple):
    """What identifies a part; waits and gaps have a place only."""

    place: TrackPlace
    phase: str | None = None
    layer: str | None = None
    op: str | None = None


StepKey = tuple[PartKey, int | None]  # with the number of the step that it belongs to, if known
# In the order in which they are found; the last one needs no mark.
IDLE: tuple[StepKey, ...] = tuple(
    (PartKey(place), None) for place in (TrackPlace.INPUT, TrackPlace.GAP, TrackPlace.BETWEEN)
)
Event = tuple[int, int, StepKey | None]  # a time, 1 or -1, and what begins or ends then
_STEP = "|"


class BackendCall(NamedTuple):
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
    _, workers = read_workers(head, map(_with_step, spans))
    calls = [call for worker in workers for call in _calls(worker)]
    times: dict[PartKey, list[float]] = {}
    counts: Counter[PartKey] = Counter()
    for number, call in enumerate(calls):
        for key, time_ns in call.times_ns.items():
            times.setdefault(key, [0.0] * len(calls))[number] += time_ns / 1e9 / steps_a_call
        counts.update(call.counts)
    step_count = max(1, len(calls)) * steps_a_call
    part_by_key = {key: Part(tuple(times_s), counts[key] / step_count) for key, times_s in times.items()}
    return StepParts(head.backend, head.device, part_by_key)


def _with_step(span: Span) -> Span:
    """Return a span whose operation begins with its step, so that it is part of what the reader stores of it."""
    return span._replace(op=f"{'' if span.step is None else span.step}{_STEP}{span.op}")


def _calls(worker: WorkerSpans) -> list[BackendCall]:
    """Return the parts of each step of a worker."""
    slots = _Slots(worker)
    keys = [_key(*key) for key in worker.keys]
    marks = [(begin, end, (PartKey(TrackPlace.INPUT), None)) for begin, end in worker.fetches]
    marks += [(begin, end, (PartKey(TrackPlace.GAP), None)) for begin, end, _ in worker.steps]
    for window in worker.windows:
        tracks = [list(track.between(window)) for track in worker.tracks]
        work = [(start, stop, keys[key]) for track in tracks for start, stop, key in _innermost(track)]
        _divide([*marks, *work], window, slots)
        for start, number in (span for track in tracks for span in _working(track)):
            key, step = keys[number]
            slots.of(step, start).counts[key] += 1
    return slots.calls


def _key(op: str, layer: str | None, phase: str | None, kind: str) -> StepKey:
    step, _, name = op.partition(_STEP)
    return PartKey(TrackPlace(kind), phase, layer, name), int(step) if step else None


class _Slots:
    """The steps of a worker, found by their number or, if work has none, by the time at which it runs."""

    def __init__(self, worker: WorkerSpans) -> None:
        self.begins = [begin for begin, _, _ in worker.steps]
        self._numbers = {number: index for index, (_, _, number) in enumerate(worker.steps)}
        self.calls = [BackendCall({}, Counter()) for _ in self.begins or worker.windows]

    def of(self, step: int | None, time: int) -> BackendCall:
        """Return the step with a number, or at a time."""
        index = None if step is None else self._numbers.get(step)
        return self.calls[max(0, bisect_right(self.begins, time) - 1) if index is None else index]


def _divide(segments: Iterable[tuple[int, int, StepKey]], window: Window, slots: _Slots) -> None:
    """Divide the moments of a window among what runs in them."""
    begin, end = window
    events: list[Event] = [(time, 0, None) for time in (begin, end, *slots.begins) if begin <= time <= end]
    for start, stop, key in segments:
        if start < end and stop > begin:
            events += [(max(start, begin), 1, key), (min(stop, end), -1, key)]
    open_now: Counter[StepKey] = Counter()
    previous_ns = begin
    last_idle: StepKey | None = None
    for time, change, changed_key in sorted(events, key=itemgetter(0)):
        if time > previous_ns:
            running_keys = [step_key for step_key in open_now.elements() if step_key[0].place in WORKING]
            idle_key_now = (
                None if running_keys else next((idle_key for idle_key in IDLE if open_now[idle_key]), IDLE[-1])
            )
            for part_key, step in [idle_key_now] if idle_key_now else running_keys:
                times_ns = slots.of(step, previous_ns).times_ns
                times_ns[part_key] = times_ns.get(part_key, 0.0) + (time - previous_ns) / max(1, len(running_keys))
            if idle_key_now and idle_key_now is not last_idle:
                slots.of(None, previous_ns).counts[idle_key_now[0]] += 1
            previous_ns = time
            last_idle = idle_key_now
        if changed_key is not None:
            open_now[changed_key] += change


def _working(spans: Iterable[Worked]) -> Iterator[tuple[int, int]]:
    """Yield begin and key of the spans of a track that do most of their work themselves, not by calling others."""
    return ((start, key) for (start, end, key), own_ns in own_times(spans) if 2 * own_ns >= end - start)


def _innermost(spans: Iterable[Worked]) -> Iterator[Worked]:
    """Yield the times in which each span of a track is the innermost one, in order."""
    stack: list[tuple[int, int]] = []  # end, key
    time = 0
    for start, end, key in chain(spans, [(MOST_NS, MOST_NS, 0)]):
        while stack and stack[-1][0] <= start:
            stop, open_key = stack.pop()
            if time < stop:
                yield time, stop, open_key
                time = stop
        if stack and time < start:
            yield time, start, stack[-1][1]
        time = start
        stack.append((end, key))


@dataclass(frozen=True, slots=True)
class AlignedPart:
    """A part on both sides, None where a side does not have it."""

    key: PartKey
    base: Part | None
    new: Part | None

    @property
    def base_s(self) -> float:
        """Its time in base, in seconds a step."""
        return self.base.mean_s if self.base else 0.0

    @property
    def new_s(self) -> float:
        """Its time in new."""
        return self.new.mean_s if self.new else 0.0

    @property
    def change_s(self) -> float:
        """By how much it became longer."""
        return self.new_s - self.base_s

    @property
    def counts(self) -> tuple[float, float]:
        """How often it occurs in a step of base and of new."""
        return self.base.count if self.base else 0.0, self.new.count if self.new else 0.0


@dataclass(frozen=True, slots=True)
class Aligned:
    """The rows of two traces; `renamed` maps layers of new to those of base that they are paired with."""

    rows: tuple[AlignedPart, ...]
    renamed: Mapping[str, str]


def aligned(base: StepParts, new: StepParts, *, same_backend: bool) -> Aligned:
    """Return the paired parts of base and new."""
    renamed = _renamed(base.layers, new.layers)
    sides = [_keyed(base, {}, same_backend), _keyed(new, renamed, same_backend)]
    keys = dict.fromkeys(key for side in sides for key in side)
    return Aligned(tuple(AlignedPart(key, sides[0].get(key), sides[1].get(key)) for key in keys), renamed)


def half_width_s(rows: Iterable[AlignedPart]) -> float | None:
    """Return the half-width of the 95 % interval of the change of these rows, from the scatter between the steps.

    None with fewer than two steps on a side. It does not contain the scatter between processes.
    """
    rows = list(rows)
    sides = [_steps([row.base for row in rows]), _steps([row.new for row in rows])]
    if any(len(side) == 1 for side in sides) or not any(sides):
        return None
    errors = [(statistics.variance(side) / len(side), len(side) - 1) for side in sides if side]
    if not any(variance for variance, _ in errors):
        return 0.0
    error_s, degrees = summed(errors)  # the sides may scatter differently
    return t_quantile(degrees, CONFIDENCE) * error_s


def _steps(parts: Sequence[Part | None]) -> list[float]:
    """Return the sum of these parts in each step."""
    times_by_part = [part.times_s for part in parts if part is not None]
    return [sum(times_s) for times_s in zip(*times_by_part, strict=True)]


def _keyed(side: StepParts, renamed: Mapping[str, str], same_backend: bool) -> dict[PartKey, Part]:
    part_by_key: dict[PartKey, Part] = {}
    for key, part in side.parts.items():
        layer = renamed.get(key.layer, key.layer) if key.layer else None
        op = _HASH.sub("...", key.op) if key.op and same_backend else None
        place = (
            key.place if same_backend or key.place not in WORKING - {TrackPlace.COMMUNICATION} else TrackPlace.COMPUTE
        )
        renamed_key = PartKey(place, key.phase, layer, op)
        part_by_key[renamed_key] = _sum(part_by_key[renamed_key], part) if renamed_key in part_by_key else part
    return part_by_key


def _sum(part: Part, other: Part) -> Part:
    return Part(tuple(map(sum, zip(part.times_s, other.times_s, strict=True))), part.count + other.count)


def _renamed(base: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Return the layers of new that have another name in base, where the order of the layers identifies them."""
    common = set(base) & set(new)
    renamed: dict[str, str] = {}
    for kind, start, end, new_start, new_end in SequenceMatcher(None, base, new, autojunk=False).get_opcodes():
        pairs = zip(base[start:end], new[new_start:new_end], strict=False)
        if kind == "replace" and end - start == new_end - new_start:
            renamed |= {
                new_layer: base_layer for base_layer, new_layer in pairs if not common & {base_layer, new_layer}
            }
    return renamed
