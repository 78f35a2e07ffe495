"""Summary of a neutral trace: the device's time by operation, layer and phase, its idle share, and the gaps.

Only spans that begin within the traced steps count, so that the profiler's own start and end do not. An operation's
time excludes operations nested in it. Guarantee: the trace is read once, as a stream; three numbers are stored of each
working span.

Device work that belongs to a step counts for the window of that step, even if it runs after the host has continued.
Then the window ends with the last of it, and begins one period of the device before the end of the first step's work:
how far the host is ahead does not count, nor how early the first step's work began. Work of no traced step is left out;
the device is busy with it. Without steps, the window has all work, and what the host did around it.
If a device's trace does not assign its work to steps, the window of an epoch ends with its last work.

The operations whose time per step differs most between two traces of one cell. Pure.

Not known: why an operation takes longer, and what the profiler itself costs in either trace.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import MOST_NS, WORKING, Head, Phase, Span, Track, TrackKind, covered
from keras_matrix.records.traces.table import IdleGap, TimeShare, TraceSummary

MOST_PARTS = 500
MOST_GAPS = 100
MOST_CHARACTERS = 60
# The tracks that show the program's activity while its device is idle.
MARKED = frozenset({TrackKind.LAYERS, TrackKind.INPUT})
Window = tuple[int, int]
Worked = tuple[int, int, int]  # begin, end, the number of its key
Key = tuple[str, str | None, str | None, str]  # operation, layer, phase, kind of track
Times = Counter[Key]
MOST_SHOWN = 3


def read_table(path: Path) -> TraceSummary:
    """Return the table of the trace at `path`. Raises `TraceError`."""
    return table(neutral.head_of(path), neutral.spans(path))


def table(head: Head, spans: Iterable[Span]) -> TraceSummary:
    """Return the table of the spans of a trace."""
    trace, workers = read_workers(head, spans)
    times_ns, counts = _own_times(workers)
    gaps = [gap for worker in workers for gap in worker.gaps]
    largest_gaps = heapq.nlargest(MOST_GAPS, gaps, key=lambda gap: gap.duration_s)
    # Devices on which nothing ran, such as the first if only the second was used, are excluded.
    windows = [worker for worker in workers if worker.window_ns]
    return TraceSummary(
        backend=head.backend,
        device=head.device,
        workers=head.workers,
        steps=head.steps,
        window_s=fmean(worker.window_ns for worker in windows) / 1e9 if windows else 0.0,
        busy_share=fmean(worker.busy_ns / worker.window_ns for worker in windows) if windows else None,
        computed_s=times_ns.total() / 1e9,
        by_operation=_parts(times_ns, counts, 0),
        by_layer=_parts(times_ns, counts, 1),
        by_phase=_parts(times_ns, counts, 2),
        by_kind=_parts(times_ns, counts, 3),
        overlap_share=_overlap_share(windows),
        gaps=[replace(gap, meanwhile=_meanwhile(gap, trace.marks.get(gap.worker, []))) for gap in largest_gaps],
        gap_count=len(gaps),
        gap_time_s=sum(gap.duration_s for gap in gaps),
        warnings=head.warnings,
        notes=[*head.notes, *_outside(trace)],
    )


def read_workers(head: Head, spans: Iterable[Span]) -> tuple[TraceSpans, list[WorkerSpans]]:
    """Return the spans of a trace, and each of its workers within its traced steps."""
    trace = TraceSpans()
    for span in spans:
        trace.add(span)
    return trace, [WorkerSpans(trace, number, head) for number in range(head.workers)]


@dataclass(slots=True)
class _TrackSpans:
    """The working spans of one track, in their order: begin, end, and the number of their key."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("l"))

    def between(self, window: Window) -> Iterator[Worked]:
        """Yield the spans that begin within a window, in their order."""
        first, end = (bisect_left(self.starts, edge) for edge in window)
        return zip(self.starts[first:end], self.ends[first:end], self.keys[first:end], strict=True)


@dataclass(slots=True)
class TraceSpans:
    """The data stored of a trace while it is read: of working spans, steps, and marks of the program by worker."""

    tracks: dict[Track, _TrackSpans] = field(default_factory=dict)
    keys: dict[Key, int] = field(default_factory=dict)
    steps: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    marks: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    fetches: dict[int, list[Window]] = field(default_factory=dict)
    begins: dict[tuple[int, int], int] = field(default_factory=dict)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    outside: dict[int, _TrackSpans] = field(default_factory=dict)
    hosts: dict[int, Window] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        track = span.track
        if track.kind in WORKING:
            self._work(self.tracks.setdefault(track, _TrackSpans()), span)
            if span.step is not None:
                place = track.worker, span.step
                self.begins[place] = min(self.begins.get(place, span.start_ns), span.start_ns)
                self.ends[place] = max(self.ends.get(place, 0), span.end_ns)
        elif track.kind is TrackKind.OUTSIDE:
            self._work(self.outside.setdefault(track.worker, _TrackSpans()), span)
        elif track.kind is TrackKind.HOST:
            begin, end = self.hosts.get(track.worker, (span.start_ns, span.end_ns))
            self.hosts[track.worker] = min(begin, span.start_ns), max(end, span.end_ns)
        elif track.kind is TrackKind.STEPS:
            self.steps.setdefault(track.worker, []).append((span.step or 0, span.start_ns, span.end_ns))
        elif track.kind in MARKED:
            self.marks.setdefault(track.worker, []).append((span.start_ns, span.end_ns, span.name))
            if track.kind is TrackKind.INPUT:
                self.fetches.setdefault(track.worker, []).append((span.start_ns, span.end_ns))

    def _work(self, working: _TrackSpans, span: Span) -> None:
        key = span.op, span.layer, span.phase, str(span.track.kind)
        working.starts.append(span.start_ns)
        working.ends.append(span.end_ns)
        working.keys.append(self.keys.setdefault(key, len(self.keys)))


class WorkerSpans:
    """One worker within the windows of its traced steps; its marks: `steps` with their numbers, `fetches`."""

    def __init__(self, trace: TraceSpans, number: int, head: Head) -> None:
        self.keys = list(trace.keys)
        self.tracks = [working for track, working in trace.tracks.items() if track.worker == number]
        self.counted: list[Window] = []  # the windows, with the work of the first step that began before them
        self.outside = trace.outside.get(number)
        self._host = trace.hosts.get(number)
        # If one process drives all devices, the first worker's steps apply to all.
        steps = trace.steps.get(number) or trace.steps.get(0, [])
        self.steps = sorted((begin, end, step) for step, begin, end in steps)
        self.fetches = trace.fetches.get(number) or trace.fetches.get(0, [])
        ends = [(step, begin, max(end, trace.ends.get((number, step), 0))) for step, begin, end in sorted(steps)]
        has_ends = any(worker == number for worker, _ in trace.ends)
        self.windows = list(self._windows(ends, head.epochs))
        if head.device != "cpu" and steps:
            on_device = (
                self._of_device(trace, number, ends, head.epochs) if has_ends else self._until_idle(self.windows)
            )
            self.windows = list(on_device)
        self.counted = self.counted or self.windows
        self.window_ns = sum(end - begin for begin, end in self.windows)
        self.busy_ns = 0
        self.gaps: list[IdleGap] = []
        for window in self.windows:
            self._look_for_gaps(number, window)

    def _windows(self, steps: Sequence[tuple[int, int, int]], epochs: int) -> Iterator[Window]:
        """Yield each traced epoch's window, from the begin of its first step to the end of the last, or of its work."""
        if not steps:
            if work := [(working.starts[0], max(working.ends)) for working in self.tracks]:
                work += [self._host] if self._host else []
                yield min(begin for begin, _ in work), max(end for _, end in work)
            return
        steps_each = max(1, len(steps) // epochs)
        for start in range(0, len(steps), steps_each):
            group = steps[start : start + steps_each]
            yield group[0][1], max(end for _, _, end in group)

    def _of_device(
        self, trace: TraceSpans, number: int, steps: Sequence[tuple[int, int, int]], epochs: int
    ) -> Iterator[Window]:
        """Yield each traced epoch's window on the device's clock."""
        steps_each = max(1, len(steps) // epochs)
        for start in range(0, len(steps), steps_each):
            traced_steps = [
                (step, begin, end)
                for step, begin, end in steps[start : start + steps_each]
                if (number, step) in trace.ends
            ]
            if not traced_steps:
                continue
            ends = sorted(trace.ends[number, step] for step, _, _ in traced_steps)
            first_step = traced_steps[0][0]
            begin_ns = trace.begins[number, first_step]
            marked_ns = next(end - begin for begin, end, step in self.steps if step == first_step)
            period_ns = (ends[-1] - ends[0]) // (len(ends) - 1) if len(ends) > 1 else marked_ns
            self.counted.append((min(begin_ns, ends[0] - period_ns), ends[-1]))
            yield ends[0] - period_ns if len(ends) > 1 else self.counted[-1][0], ends[-1]

    def _until_idle(self, windows: Sequence[Window]) -> Iterator[Window]:
        """Yield the windows, each extended to the end of the work that began before the next one."""
        for number, (begin, end) in enumerate(windows):
            following = windows[number + 1][0] if number + 1 < len(windows) else MOST_NS
            stops = (stop for working in self.tracks for _, stop, _ in working.between((begin, following)))
            yield begin, max(end, *stops, end)

    def busy_with(self, *kinds: TrackKind) -> int:
        """Return how long, within the windows, an operation of any of these kinds ran.

        An operator that only starts or waits for a collective, on the thread of a CPU, is no computation.
        """
        starts = {(TrackKind.COMPUTE, Phase.COMMUNICATION)}
        numbers = {number for number, key in enumerate(self.keys) if key[3] in kinds and (key[3], key[2]) not in starts}
        spans = chain.from_iterable(self.within())
        return round(covered((start, stop) for start, stop, key in spans if key in numbers))

    def within(self) -> Iterator[Iterator[Worked]]:
        """Yield, for each track, the spans that begin within a window, in their order."""
        for working in self.tracks:
            yield chain.from_iterable(map(working.between, self.counted))

    def _look_for_gaps(self, number: int, window: Window) -> None:
        begin, end = window
        spans = sorted(span for working in self.tracks for span in working.between(window))
        if self.outside is not None:
            others = zip(self.outside.starts, self.outside.ends, self.outside.keys, strict=True)
            spans = sorted([*spans, *((max(start, begin), stop, key) for start, stop, key in others if begin < stop)])
            spans = [span for span in spans if span[0] < end]
        reached_end, part_before = begin, None
        for start, stop, key in spans:
            if start > reached_end:
                self.gaps.append(
                    IdleGap(number, reached_end / 1e9, (start - reached_end) / 1e9, part_before, self.keys[key][0])
                )
            if stop > reached_end:
                self.busy_ns += min(stop, end) - min(max(start, reached_end), end)
                reached_end, part_before = stop, self.keys[key][0]
        if end > reached_end:
            self.gaps.append(IdleGap(number, reached_end / 1e9, (end - reached_end) / 1e9, part_before, None))


def _outside(trace: TraceSpans) -> list[str]:
    """Return a sentence about a device's work that no traced step has launched."""
    times_ns: Counter[str] = Counter()
    names = list(trace.keys)
    for working in trace.outside.values():
        for start, stop, key in zip(working.starts, working.ends, working.keys, strict=True):
            times_ns[names[key][0]] += stop - start
    if not times_ns:
        return []
    largest_names = ", ".join(name[:MOST_CHARACTERS] for name, _ in times_ns.most_common(3))
    return [
        f"work of the device that was launched outside of the traced steps ({times_ns.total() / 1e6:.3f} ms in all) is"
        f" left out: {largest_names}"
    ]


def _overlap_share(workers: Iterable[WorkerSpans]) -> float | None:
    """Return the share of communication time in which the same worker also computed; None without communication."""
    overlapped_ns = communicated_ns = 0
    for worker in workers:
        communication_ns, computed = worker.busy_with(TrackKind.COMMUNICATION), worker.busy_with(TrackKind.COMPUTE)
        communicated_ns += communication_ns
        overlapped_ns += communication_ns + computed - worker.busy_with(TrackKind.COMMUNICATION, TrackKind.COMPUTE)
    return overlapped_ns / communicated_ns if communicated_ns else None


def _meanwhile(gap: IdleGap, marks: Sequence[tuple[int, int, str]]) -> str | None:
    """Return the mark that covers most of a gap; of nested ones the innermost, which is the shortest."""
    begin, end = gap.begin_s * 1e9, (gap.begin_s + gap.duration_s) * 1e9
    covering = [
        (stop - start, name) for start, stop, name in marks if 2 * (min(stop, end) - max(start, begin)) > end - begin
    ]
    return min(covering)[1] if covering else None


def _own_times(workers: Iterable[WorkerSpans]) -> tuple[Times, Times]:
    """Return the own time of each key over all workers, and its number of operations."""
    times_ns, counts = Times(), Times()
    for worker in workers:
        for working in worker.within():
            for (_, _, key), own_ns in own_times(working):
                times_ns[worker.keys[key]] += own_ns
                counts[worker.keys[key]] += 1
    return times_ns, counts


def own_times(spans: Iterable[Worked]) -> Iterator[tuple[Worked, int]]:
    """Yield each span of a track, and its time less that of the spans nested directly in it."""
    stack: list[tuple[Worked, int]] = []  # a span, and its own time
    for span in spans:
        start, end, _ = span
        while stack and stack[-1][0][1] <= start:
            yield stack.pop()
        if stack:
            outer, own_ns = stack.pop()
            stack.append((outer, own_ns - (end - start)))
        stack.append((span, end - start))
    while stack:
        yield stack.pop()


def _parts(times_ns: Times, counts: Times, field_number: int) -> list[TimeShare]:
    """Return the times by one part of the key, the largest first."""
    part_ns: Counter[str | None] = Counter()
    part_counts: Counter[str | None] = Counter()
    for key, time_ns in times_ns.items():
        part_ns[key[field_number]] += time_ns
        part_counts[key[field_number]] += counts[key]
    total = times_ns.total() or 1
    names = sorted(part_ns, key=lambda name: (-part_ns[name], name or ""))
    return [
        TimeShare(name, part_counts[name], part_ns[name] / 1e9, part_ns[name] / total) for name in names[:MOST_PARTS]
    ]


@dataclass(frozen=True, slots=True)
class OperationShift:
    """An operation's own time per step in both traces; `name` is None for the time that belongs to no operation."""

    name: str | None
    before_s: float
    after_s: float

    @property
    def shift_s(self) -> float:
        """Return by how much a step spends more time in it."""
        return self.after_s - self.before_s


def largest_shifts(before: TraceSummary, after: TraceSummary, count: int = MOST_SHOWN) -> list[OperationShift]:
    """Return the operations that differ most, the largest difference first; empty if a trace has no steps."""
    times = [_per_step(table) for table in (before, after)]
    shifts = [
        OperationShift(name, *(side_times.get(name, 0.0) for side_times in times)) for name in {**times[0], **times[1]}
    ]
    ranked = sorted(
        (shift for shift in shifts if shift.shift_s), key=lambda shift: (-abs(shift.shift_s), shift.name or "")
    )
    return ranked[:count] if all(times) else []


def _per_step(table: TraceSummary) -> dict[str | None, float]:
    return {operation.name: operation.time_s / table.steps for operation in table.by_operation} if table.steps else {}
