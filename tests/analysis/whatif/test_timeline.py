"""Replayed and measured steps as spans of the neutral trace."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.whatif import engine
from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Phase, Track, TrackKind
from tests.analysis.whatif.hand_made import LINK, Nodes, data_parallel


def test_a_replayed_step_begins_at_zero_and_has_a_span_for_each_node() -> None:
    graph = data_parallel()
    spans = list(engine.spans(graph, simulate(graph)))
    assert len(spans) == 2 + len(graph.nodes)
    assert [(one.start_ns, one.end_ns) for one in spans if one.track == Track(0, TrackKind.STEPS)] == [(0, 1850)]
    update = next(one for one in spans if one.name == "update")
    assert (update.start_ns, update.end_ns, update.phase, update.track) == (
        1800,
        1850,
        Phase.UPDATE,
        Track(0, TrackKind.COMPUTE),
    )


def test_a_collective_is_shown_from_when_its_rank_is_ready() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, 0, depends_before=(2,)), nodes.add(40, 1, depends_before=(3,))]
    nodes.collective(0, [55, 25], ready, bytes=77)
    graph = nodes.graph()
    spans = [one for one in engine.spans(graph, simulate(graph)) if one.track.kind is TrackKind.COMMUNICATION]
    assert [(one.track.worker, one.start_ns, one.end_ns, one.size_bytes) for one in spans] == [
        (0, 10, 65, 77),
        (1, 40, 65, 77),
    ]


def test_a_wait_has_no_span() -> None:
    nodes = Nodes()
    nodes.add(10)
    nodes.add(10, kind=NodeKind.WAIT)
    graph = nodes.graph()
    assert [one.track.kind for one in engine.spans(graph, simulate(graph))] == [TrackKind.STEPS, TrackKind.COMPUTE]


def test_lanes_are_tracks_and_nodes_that_overlap_within_one_get_several() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, rank) for rank in range(2)]
    for ordinal in range(3):
        nodes.collective(ordinal, [100] * 2, ready)
    nodes.add(10, lane="other")
    graph = nodes.graph(parallel_lanes={LINK: 2})
    spans = [one for one in engine.spans(graph, simulate(graph)) if one.track.worker == 0]
    assert [one.track.name for one in spans if one.track.kind is TrackKind.COMMUNICATION] == [
        "communication",
        "communication 2",
        "communication",
    ]
    assert {one.track.name for one in spans if one.track.kind is TrackKind.COMPUTE} == {"compute", "compute 2"}


def test_measured_steps_follow_one_another() -> None:
    nodes = Nodes()
    nodes.add((10, 20), starts_ns=(5, 6))
    nodes.add((10, 20))
    graph = nodes.graph(step_times_s=(100e-9, 200e-9))
    spans = list(engine.measured_spans(graph, first_worker=3))
    assert [(one.track.worker, one.track.kind, one.start_ns, one.duration_ns, one.step) for one in spans] == [
        (3, TrackKind.STEPS, 0, 100, 1),
        (3, TrackKind.COMPUTE, 5, 10, 1),
        (3, TrackKind.STEPS, 100, 200, 2),
        (3, TrackKind.COMPUTE, 106, 20, 2),
    ]


def test_both_timelines_are_stored_in_one_neutral_trace(tmp_path: Path) -> None:
    graph = data_parallel()
    replayed = list(engine.spans(graph, simulate(graph), first_worker=2))
    path = tmp_path / "trace.json.gz"
    neutral.write(path, Head("torch", 4, "cpu", 1), replayed)
    assert sorted(neutral.spans(path)) == sorted(replayed)
