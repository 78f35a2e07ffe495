"""The profiler's cost is removed from what its threads ran, by the step time without the profiler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keras_matrix.analysis.whatif.corrections import without_overhead
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from tests.analysis.whatif.hand_made import Nodes, data_parallel

COST_NS = 20_000


def slowed(graph: Graph) -> Graph:
    """Return the graph as traced by a profiler that adds a part of its cost before each operation, the rest inside."""
    nodes = [
        node
        if node.collective is not None
        else replace(
            node,
            gaps_ns=tuple(gap + COST_NS // 4 for gap in node.gaps_ns),
            durations_ns=tuple(duration + 3 * COST_NS // 4 for duration in node.durations_ns),
        )
        for node in graph.nodes
    ]
    return graph.with_nodes(nodes)


def stack() -> Graph:
    """Small and large operations, in microseconds: 10, 1000, 30, 5, 400."""
    nodes = Nodes()
    for duration in (10, 1000, 30, 5, 400):
        nodes.add((duration * 1000,) * 3)
    return nodes.graph()


def test_every_operation_becomes_shorter_by_the_same_time() -> None:
    found = without_overhead(slowed(stack()), step_time_s(stack()))
    durations = [node.durations_ns[0] + node.gaps_ns[0] for node in found.nodes]
    assert durations == pytest.approx([10_000, 1_000_000, 30_000, 5_000, 400_000], abs=1000)
    assert "us of each operation on a thread were removed as the profiler's cost" in found.header.caveats[0]


def test_the_replay_takes_the_time_without_the_profiler() -> None:
    found = without_overhead(slowed(stack()), 1.4e-3)
    assert step_time_s(found) == pytest.approx(1.4e-3, rel=0.003)


def test_a_trace_that_is_as_fast_as_without_the_profiler_is_unchanged() -> None:
    assert without_overhead(stack(), step_time_s(stack()) * 1.1).nodes == stack().nodes
    assert without_overhead(stack(), step_time_s(stack())).header.caveats == ()


def test_collectives_and_work_of_a_device_keep_their_time() -> None:
    nodes = Nodes()
    launch = nodes.add(50_000, kind=NodeKind.HOST)
    nodes.add(100_000, lane="stream", depends=(launch,))
    nodes.add(30_000, kind=NodeKind.HOST, depends=(1,))
    found = without_overhead(nodes.graph(device="gpu"), 160e-6)
    assert [node.durations_ns[0] for node in found.nodes] == pytest.approx([40_000, 100_000, 20_000], abs=500)


def test_what_cannot_be_explained_by_the_profiler_stays() -> None:
    """Communication of 1200 us is on the critical path: no cost of operations makes the step faster than that."""
    graph = _in_microseconds(data_parallel())
    found = without_overhead(graph, 100e-6)
    assert step_time_s(found) >= 1200e-6
    assert step_time_s(found) < step_time_s(graph)


def test_changed_settings_are_predicted_without_the_profilers_cost() -> None:
    """A bucket of all gradients shows the whole backward pass, which the traced buckets hide."""
    graph = _in_microseconds(data_parallel())
    what_if = [registry.read("tensor_fusion=4,")]
    truth = step_time_s(registry.apply(graph, what_if))
    traced = slowed(graph)
    found = without_overhead(traced, step_time_s(graph))
    assert step_time_s(registry.apply(traced, what_if)) > truth * 1.05
    assert step_time_s(registry.apply(found, what_if)) == pytest.approx(truth, rel=0.01)


def _in_microseconds(graph: Graph) -> Graph:
    nodes = [replace(node, durations_ns=tuple(1000 * one for one in node.durations_ns)) for node in graph.nodes]
    link = graph.header.link
    assert link is not None
    slower = replace(link, alpha_s=link.alpha_s * 1000, beta_s_per_byte=link.beta_s_per_byte * 1000)
    return graph.with_nodes(nodes, link=slower)
