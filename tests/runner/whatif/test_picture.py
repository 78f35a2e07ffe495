"""The picture of a replayed step under the measured one."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.runner.whatif.picture import svg
from tests.runner.whatif.graphs import two_workers

SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph: Graph) -> ET.Element:
    return ET.fromstring(svg(graph, simulate(graph), "a <title> & more"))


def bars(picture: ET.Element, name: str) -> list[ET.Element]:
    return [one for one in picture.iter(f"{SVG}rect") if one.get("class") == name and one.get("height") != "12"]


def test_measured_and_replayed_step_have_a_row_per_lane() -> None:
    picture = drawn(two_workers())
    texts = [one.text or "" for one in picture.iter(f"{SVG}text")]
    assert 2 == texts.count("rank 0: main") == texts.count("rank 1: gloo")
    assert {"measured: 21.0\u00a0ms", "replayed: 18.0\u00a0ms"} <= set(texts)


def test_operations_are_drawn_in_the_colour_of_their_phase() -> None:
    picture = drawn(two_workers())
    # Two ranks, measured and replayed.
    assert 4 == len(bars(picture, "forward")) == len(bars(picture, "update"))
    assert 8 == len(bars(picture, "backward")) == len(bars(picture, "communication"))
    assert {"mm, 2.00\u00a0ms"} == {one.findtext(f"{SVG}title") for one in bars(picture, "forward")}


def test_a_wait_is_not_drawn() -> None:
    graph = two_workers()
    nodes = [replace(node, kind=NodeKind.WAIT) if node.phase == "update" else node for node in graph.nodes]
    assert bars(drawn(graph.with_nodes(nodes)), "update") == []


def test_narrow_operations_are_merged() -> None:
    graph = two_workers()
    first = graph.nodes[0]
    many = [
        replace(first, number=number, durations_ns=(1_000,) * 3, starts_ns=(number * 1_000,) * 3, depends=())
        for number in range(2_000)
    ]
    merged = bars(drawn(graph.with_nodes(many)), "forward")
    assert len(merged) < 10
    assert any("operations" in (one.findtext(f"{SVG}title") or "") for one in merged)


def test_operations_of_a_lane_that_overlap_share_its_height() -> None:
    graph = two_workers()
    nodes = [replace(node, depends=()) if node.lane == "gloo" else node for node in graph.nodes]
    overlapping = graph.with_nodes(nodes, parallel_lanes={"gloo": 2})
    starts = [replace(node, starts_ns=(0,) * 3) if node.lane == "gloo" else node for node in overlapping.nodes]
    heights = [one.get("height") for one in bars(drawn(overlapping.with_nodes(starts)), "communication")]
    # In the measured step the two sums of each rank overlap, in the replayed one of `graph` they follow one another.
    assert heights[:4] == ["8"] * 4
    assert [one.get("height") for one in bars(drawn(graph), "communication")][4:] == ["16"] * 4


def test_a_rank_that_begins_before_the_others_is_within_the_picture() -> None:
    graph = two_workers()
    early = [replace(node, starts_ns=(-2_000_000,) * 3) if node.phase == "forward" else node for node in graph.nodes]
    places = [float(one.get("x") or 0) for one in bars(drawn(graph.with_nodes(early)), "forward")]
    assert min(places) >= 190
