"""What a neutral trace comes to: the device's time by operation, layer and phase, how long it was idle, and the gaps.

Only what began within the traced steps counts, so that the profiler's own start and end do not. An operation's time is
that of itself alone: what is nested in it is taken off. Promise: the trace is read once, as a stream; of each span that
worked three numbers are kept.

Work of a device that belongs to a step counts for the window of that step, also when it runs after the host went on.
Where a device's trace does not say to which step its work belongs, the window of an epoch ends with its last work.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import MOST_NS, WORKING, Head, Kind, Span, Track, covered
from keras_matrix.records.traces.table import Gap, Table, TimeShare

MOST_PARTS = 500
MOST_GAPS = 100
# What tells what the program was doing while its device was idle.
MARKED = frozenset({Kind.LAYERS, Kind.INPUT})

Window = tuple[int, int]
Worked = tuple[int, int, int]  # begin, end, the number of its key
Key = tuple[str, str | None, str | None, str]  # operation, layer, phase, kind of track


def tabled(path: Path) -> Table:
    """Return what the trace at `path` comes to. Raises `TraceError`."""
    return table(neutral.head_of(path), neutral.spans(path))


def table(head: Head, spans: Iterable[Span]) -> Table:
    """Return what the spans of a trace come to."""
    seen = _Seen()
    for span in spans:
        seen.add(span)
    workers = [_Worker(seen, number, head) for number in range(head.workers)]
    own = _own_times(workers)
    gaps = [gap for worker in workers for gap in worker.gaps]
    largest = heapq.nlargest(MOST_GAPS, gaps, key=lambda gap: gap.duration_s)
    # Of a device that nothing ran on, as of the first where only the second was used, nothing can be told.
    windows = [worker for worker in workers if worker.window_ns]
    return Table(
        backend=head.backend,
        device=head.device,
        workers=head.workers,
        steps=head.steps,
        window_s=fmean(worker.window_ns for worker in windows) / 1e9 if windows else 0.0,
        busy_share=fmean(worker.busy_ns / worker.window_ns for worker in windows) if windows else None,
        computed_s=sum(one.time_ns for one in own.values()) / 1e9,
        by_operation=_parts(own, 0),
        by_layer=_parts(own, 1),
        by_phase=_parts(own, 2),
        by_kind=_parts(own, 3),
        overlap_share=_overlap_share(windows),
        gaps=[replace(gap, meanwhile=_meanwhile(gap, seen.marks.get(gap.worker, []))) for gap in largest],
        gap_count=len(gaps),
        gap_time_s=sum(gap.duration_s for gap in gaps),
        warnings=head.warnings,
    )


@dataclass(slots=True)
class _Lane:
    """The spans of one track that worked, in their order: begin, end, and the number of their key."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("l"))

    def between(self, window: Window) -> Iterator[Worked]:
        """Yield the spans that begin within a window, in their order."""
        first, after = (bisect_left(self.starts, at) for at in window)
        return zip(self.starts[first:after], self.ends[first:after], self.keys[first:after], strict=True)


@dataclass(slots=True)
class _Seen:
    """What is kept of a trace while it is read."""

    lanes: dict[Track, _Lane] = field(default_factory=dict)
    keys: dict[Key, int] = field(default_factory=dict)
    steps: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    marks: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        track = span.track
        if track.kind in WORKING:
            lane = self.lanes.setdefault(track, _Lane())
            lane.starts.append(span.start_ns)
            lane.ends.append(span.end_ns)
            lane.keys.append(self.keys.setdefault((span.op, span.layer, span.phase, str(track.kind)), len(self.keys)))
            if span.step is not None:
                place = track.worker, span.step
                self.ends[place] = max(self.ends.get(place, 0), span.end_ns)
        elif track.kind is Kind.STEPS:
            self.steps.setdefault(track.worker, []).append((span.step or 0, span.start_ns, span.end_ns))
        elif track.kind in MARKED:
            self.marks.setdefault(track.worker, []).append((span.start_ns, span.end_ns, span.name))


@dataclass(slots=True)
class _Own:
    """The own time of all operations with one key, and how many there are."""

    count: int = 0
    time_ns: int = 0


class _Worker:
    """One worker within the windows of its traced steps."""

    def __init__(self, seen: _Seen, number: int, head: Head) -> None:
        self.keys = list(seen.keys)
        self.lanes = [lane for track, lane in seen.lanes.items() if track.worker == number]
        # Where one process drives all devices, the first worker's steps are everybody's.
        steps = seen.steps.get(number) or seen.steps.get(0, [])
        ends = [(step, begin, max(end, seen.ends.get((number, step), 0))) for step, begin, end in sorted(steps)]
        known = any(worker == number for worker, _ in seen.ends)
        self.windows = list(self._windows(ends, head.epochs))
        if head.device != "cpu" and steps and not known:
            self.windows = list(self._until_idle(self.windows))
        self.window_ns = sum(end - begin for begin, end in self.windows)
        self.busy_ns = 0
        self.gaps: list[Gap] = []
        for window in self.windows:
            self._look_for_gaps(number, window)

    def _windows(self, steps: Sequence[tuple[int, int, int]], epochs: int) -> Iterator[Window]:
        """Yield, of each traced epoch, from where its first step begins to where the last, or its work, ends."""
        if not steps:
            if begins := [lane.starts[0] for lane in self.lanes]:
                yield min(begins), max(max(lane.ends) for lane in self.lanes)
            return
        each = max(1, len(steps) // epochs)
        for at in range(0, len(steps), each):
            group = steps[at : at + each]
            yield group[0][1], max(end for _, _, end in group)

    def _until_idle(self, windows: Sequence[Window]) -> Iterator[Window]:
        """Yield the windows, each until the end of what began before the next one."""
        for number, (begin, end) in enumerate(windows):
            following = windows[number + 1][0] if number + 1 < len(windows) else MOST_NS
            stops = (stop for lane in self.lanes for _, stop, _ in lane.between((begin, following)))
            yield begin, max(end, *stops, end)

    def busy_with(self, *kinds: Kind) -> int:
        """Return how long, within the windows, an operation of any of these kinds ran."""
        wanted = {number for number, key in enumerate(self.keys) if key[3] in kinds}
        spans = chain.from_iterable(self.within())
        return round(covered((start, stop) for start, stop, key in spans if key in wanted))

    def within(self) -> Iterator[Iterator[Worked]]:
        """Yield of each track the spans that begin within a window, in their order."""
        for lane in self.lanes:
            yield chain.from_iterable(map(lane.between, self.windows))

    def _look_for_gaps(self, number: int, window: Window) -> None:
        begin, end = window
        spans = sorted(span for lane in self.lanes for span in lane.between(window))
        reached, before = begin, None
        for start, stop, key in spans:
            if start > reached:
                self.gaps.append(Gap(number, reached / 1e9, (start - reached) / 1e9, before, self.keys[key][0]))
            if stop > reached:
                self.busy_ns += min(stop, end) - min(max(start, reached), end)
                reached, before = stop, self.keys[key][0]
        if end > reached:
            self.gaps.append(Gap(number, reached / 1e9, (end - reached) / 1e9, before, None))


def _overlap_share(workers: Iterable[_Worker]) -> float | None:
    """Return the share of the time with communication in which the same worker computed, too; None without any."""
    together = communicated = 0
    for worker in workers:
        own, computed = worker.busy_with(Kind.COMMUNICATION), worker.busy_with(Kind.COMPUTE)
        communicated += own
        together += own + computed - worker.busy_with(Kind.COMMUNICATION, Kind.COMPUTE)
    return together / communicated if communicated else None


def _meanwhile(gap: Gap, marks: Sequence[tuple[int, int, str]]) -> str | None:
    """Return the mark within which most of a gap lies; of nested ones the innermost, which is the shortest."""
    begin, end = gap.begin_s * 1e9, (gap.begin_s + gap.duration_s) * 1e9
    around = [
        (stop - start, name) for start, stop, name in marks if 2 * (min(stop, end) - max(start, begin)) > end - begin
    ]
    return min(around)[1] if around else None


def _own_times(workers: Iterable[_Worker]) -> dict[Key, _Own]:
    """Return the own time of each key over all workers."""
    found: dict[Key, _Own] = {}
    for worker in workers:
        for lane in worker.within():
            for key, own_ns in _own(lane):
                one = found.setdefault(worker.keys[key], _Own())
                one.count += 1
                one.time_ns += own_ns
    return found


def _own(spans: Iterable[Worked]) -> Iterator[tuple[int, int]]:
    """Yield each span's key and its time less that of those nested directly in it."""
    stack: list[list[int]] = []  # end, key, own time
    for start, end, key in spans:
        while stack and stack[-1][0] <= start:
            yield stack[-1][1], stack.pop()[2]
        if stack:
            stack[-1][2] -= end - start
        stack.append([end, key, end - start])
    while stack:
        yield stack[-1][1], stack.pop()[2]


def _parts(own: dict[Key, _Own], field_number: int) -> list[TimeShare]:
    """Return the times by one part of the key, the largest first."""
    found: dict[str | None, _Own] = {}
    for key, one in own.items():
        part = found.setdefault(key[field_number], _Own())
        part.count += one.count
        part.time_ns += one.time_ns
    total = sum(one.time_ns for one in own.values())
    named = sorted(found.items(), key=lambda item: (-item[1].time_ns, item[0] or ""))
    return [
        TimeShare(name, one.count, one.time_ns / 1e9, one.time_ns / total if total else 0.0)
        for name, one in named[:MOST_PARTS]
    ]
