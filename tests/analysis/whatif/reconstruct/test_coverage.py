"""Coverage counts what the end of a step has waited for: operations, but no gap and nothing that ran meanwhile."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.whatif.graph import Graph, Header, Node, NodeKind
from keras_matrix.analysis.whatif.reconstruct.coverage import PhaseTime, coverage_of, of_graph


def node(number: int, start: int, duration: int, gap: int, lane: str = "host", **fields: object) -> Node:
    kind = fields.pop("kind", NodeKind.COMPUTE)
    given: dict[str, object] = {"name": f"n{number}", "kind": kind} | fields
    return Node(
        **{"number": number, "rank": 0, "lane": lane, "durations_ns": (duration,)},  # type: ignore[arg-type]
        **{"starts_ns": (start,), "gaps_ns": (gap,)},  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )


def test_gaps_on_the_way_to_the_end_are_not_explained() -> None:
    nodes = [node(0, 5, 45, 5), node(1, 60, 40, 10)]
    assert coverage_of(nodes, 0, 1, [100]).share == pytest.approx(0.85)


def test_operations_of_another_lane_that_nothing_waits_for_explain_nothing() -> None:
    nodes = [node(0, 0, 50, 0), node(1, 50, 40, 0, "stream"), node(2, 90, 10, 40)]
    assert coverage_of(nodes, 0, 2, [100]).share == pytest.approx(0.6)


def test_waiting_for_a_known_operation_is_explained_by_it() -> None:
    nodes = [node(0, 0, 50, 0), node(1, 50, 40, 0, "stream", depends=(0,)), node(2, 90, 10, 0, depends=(1,))]
    found = coverage_of(nodes, 0, 2, [100])
    assert found.share == 1.0
    assert [passed.node.number for passed in found.paths[0]] == [2, 1, 0]


def test_wait_explains_no_time_itself() -> None:
    nodes = [node(0, 0, 50, 0), node(1, 60, 0, 10, kind=NodeKind.WAIT), node(2, 60, 40, 0)]
    assert coverage_of(nodes, 0, 2, [100]).share == pytest.approx(0.9)


def test_lane_that_runs_several_nodes_has_no_order() -> None:
    nodes = [node(0, 0, 10, 0), node(1, 10, 60, 0, "link", depends=(0,)), node(2, 20, 70, 10, "link", depends=(0,))]
    nodes.append(node(3, 90, 10, 0, depends=(2,)))
    assert [passed.node.number for passed in coverage_of(nodes, 0, 3, [100], {"link"}).paths[0]] == [3, 2, 0]


def test_time_is_given_by_phase() -> None:
    nodes = [node(0, 0, 50, 0, phase="forward"), node(1, 60, 40, 10, phase="backward")]
    phases = coverage_of(nodes, 0, 1, [100]).phases
    assert {name: time.time_s for name, time in phases.items()} == {"backward": (5e-8,), "forward": (5e-8,)}
    assert phases["backward"].share == pytest.approx(0.8)


def test_error_of_a_phase_is_that_of_the_step_before_as_a_prediction() -> None:
    assert PhaseTime((1.0, 0.8), (0.0, 0.2)).errors == (0.0,)
    assert PhaseTime((1.1, 1.0, 2.0), (0.0, 0.0, 0.0)).errors == pytest.approx((0.1, -0.5))


def graph(nodes: list[Node]) -> Graph:
    return Graph(Header("mine.json", "torch", "cpu", 2, (100e-9,), 0.0), tuple(nodes))


def test_the_end_of_a_step_is_that_of_the_lane_that_begins_it() -> None:
    nodes = [node(0, 0, 50, 0), node(1, 50, 60, 0, "stream", depends=(0,)), node(2, 55, 40, 5)]
    assert of_graph(graph(nodes), 0).share == pytest.approx(0.95)
