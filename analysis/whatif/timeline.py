"""Timelines of a graph as spans of the neutral trace, for Perfetto: a replayed step, and the traced steps.

Both may be written to one file: `first_worker` moves the ranks of one of them to other workers of the file. A
collective is shown on each rank from the time when that rank is ready for it, as profilers show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from keras_matrix.analysis.whatif.engine import Schedule
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.records.traces.neutral import Phase, Span, Track, TrackKind

KINDS = {
    NodeKind.HOST: TrackKind.HOST,
    NodeKind.COMPUTE: TrackKind.COMPUTE,
    NodeKind.COMMUNICATION: TrackKind.COMMUNICATION,
    NodeKind.INPUT: TrackKind.INPUT,
}
PHASES = frozenset(Phase)
Interval = tuple[Node, int, int]


def spans(graph: Graph, schedule: Schedule, *, first_worker: int = 0) -> Iterator[Span]:
    """Yield the steady step of a replay, which begins at 0. Rank r is worker `first_worker` + r."""
    times, begin = schedule.steps[-1], schedule.begin_ns
    intervals = []
    for node in graph.nodes:
        start, end = (round(value[node.number] - begin) for value in (times.ready_ns, times.ends_ns))
        intervals.append((node, start, end - start))
    for rank in range(graph.header.world_size):
        yield _step(first_worker + rank, 1, 0, round(schedule.step_time_ns))
    yield from _spans(intervals, 1, first_worker)


def measured_spans(graph: Graph, *, first_worker: int = 0) -> Iterator[Span]:
    """Yield the traced steps one after another, as they were measured. Nodes without `starts_ns` are left out."""
    begin = 0
    for step, time_s in enumerate(graph.header.step_times_s):
        intervals = [
            (node, begin + node.starts_ns[step], node.durations_ns[step])
            for node in graph.nodes
            if step < min(len(node.starts_ns), len(node.durations_ns))
        ]
        for rank in range(graph.header.world_size):
            yield _step(first_worker + rank, step + 1, begin, round(time_s * 1e9))
        yield from _spans(intervals, step + 1, first_worker)
        begin += round(time_s * 1e9)


def _step(worker: int, step: int, start_ns: int, duration_ns: int) -> Span:
    return Span(Track(worker, TrackKind.STEPS), f"step {step}", "step", start_ns, duration_ns, step=step)


def _spans(intervals: Iterable[Interval], step: int, first_worker: int) -> Iterator[Span]:
    """Yield a span for each node, on a track of its lane; nodes of a lane that overlap get several tracks."""
    tracks: dict[tuple[int, TrackKind], list[tuple[str, int]]] = defaultdict(list)  # lane and end of each track
    for node, start, duration in sorted(intervals, key=lambda one: (one[1], one[0].number)):
        if (kind := KINDS.get(node.kind)) is None:
            continue
        ends = tracks[node.rank, kind]
        at = next((at for at, (lane, end) in enumerate(ends) if lane == node.lane and end <= start), len(ends))
        ends[at : at + 1] = [(node.lane, start + duration)]
        phase = Phase(node.phase) if node.phase in PHASES else None
        track = Track(first_worker + node.rank, kind, at)
        size = node.collective.bytes if node.collective else node.bytes
        yield Span(track, node.name, node.name, start, duration, phase, node.layer, step, size_bytes=size)
