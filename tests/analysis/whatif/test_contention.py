"""Durations without contention, from traces whose contention is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import exclusive
from tests.analysis.whatif.hand_made import LINK, Nodes, link


def traced(graph: Graph) -> Graph:
    """Return the graph as a trace of its own simulation would have measured it."""
    schedule = simulate(graph, steps=1)
    nodes = [
        replace(
            node,
            starts_ns=(round(schedule.starts_ns[node.number]),),
            durations_ns=(round(schedule.ends_ns[node.number] - schedule.starts_ns[node.number]),),
        )
        for node in graph.nodes
    ]
    return Graph(replace(graph.header, exclusive=False), tuple(nodes))


def durations(graph: Graph) -> list[int]:
    return [node.durations_ns[0] for node in graph.nodes]


def test_work_on_shared_cores_is_the_share_that_a_node_had() -> None:
    """Two of 100 and 50 on one core: measured until 150 and until 100."""
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,))
    nodes.add(100, lane="other", cores=1.0, starts_ns=(0,))
    assert durations(exclusive(nodes.graph(cores=1, exclusive=False))) == [100, 50]


def test_transfers_at_the_same_time_had_half_the_link() -> None:
    nodes = Nodes()
    ready = [nodes.add(10, rank, starts_ns=(0,)) for rank in range(2)]
    nodes.collective(0, [200, 200], ready, lane="a", starts_ns=(10,))
    nodes.collective(1, [300, 300], ready, lane="b", starts_ns=(10,))
    graph = nodes.graph(exclusive=False)
    assert durations(exclusive(graph))[2:] == [100, 100, 200, 200]
    with_alpha = replace(graph, header=replace(graph.header, link=link(60e-9, 1e-9)))
    assert durations(exclusive(with_alpha))[2:] == [60 + 70, 60 + 70, 60 + 170, 60 + 170]


def test_durations_are_unchanged_where_nothing_is_shared() -> None:
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,))
    nodes.add(100, lane="other", cores=1.0, starts_ns=(0,))
    graph = nodes.graph(cores=2, exclusive=False)
    assert exclusive(graph).nodes == graph.nodes
    assert exclusive(graph).header.exclusive


def test_durations_without_contention_are_not_changed_again() -> None:
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,))
    nodes.add(100, lane="other", cores=1.0, starts_ns=(0,))
    once = exclusive(nodes.graph(cores=1, exclusive=False))
    assert exclusive(once) is once


def test_a_node_whose_start_is_unknown_keeps_its_duration() -> None:
    nodes = Nodes()
    nodes.add(150, cores=1.0, starts_ns=(0,))
    nodes.add(100, lane="other", cores=1.0)
    assert durations(exclusive(nodes.graph(cores=1, exclusive=False))) == [150, 100]


@settings(deadline=None, max_examples=40, database=None)
@given(st.lists(st.lists(st.integers(10, 1000), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 3))
def test_a_trace_of_any_simulation_gives_its_durations_back(lanes: list[list[int]], cores: int) -> None:
    nodes = Nodes()
    for number, values in enumerate(lanes):
        for value in values:
            nodes.add(value, lane=f"thread {number}", cores=1.0)
    graph = nodes.graph(cores=cores)
    assert durations(exclusive(traced(graph))) == pytest.approx(durations(graph), abs=8)


def test_a_trace_of_shared_transfers_gives_their_durations_back() -> None:
    nodes = Nodes()
    for rank in range(2):
        nodes.add(100, rank)
    for ordinal, duration in enumerate((300, 500, 200, 900)):
        nodes.collective(ordinal, [duration] * 2, [0, 1], lane=LINK)
    graph = nodes.graph(parallel_lanes={LINK: 2}, link=link(50e-9, 1e-9))
    assert durations(exclusive(traced(graph))) == pytest.approx(durations(graph), abs=4)
