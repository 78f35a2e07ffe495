"""Nodes that are removed and added, and what becomes of dependencies on them."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.what_ifs.what_if import renumbered, scaled
from tests.analysis.whatif.hand_made import Nodes


def line() -> Graph:
    """Nodes 0 to 3 on lanes of their own, each after the one before, the first after the last of the step before."""
    nodes = Nodes()
    for at in range(4):
        nodes.add(10, lane=f"lane {at}", depends=(at - 1,) if at else (), depends_before=() if at else (3,))
    return nodes.graph()


def test_what_depended_on_a_removed_node_depends_on_what_that_waited_for() -> None:
    graph = line()
    changed = renumbered(graph, [graph.nodes[0], graph.nodes[3]])
    assert [(node.depends, node.depends_before) for node in changed.nodes] == [((), (1,)), ((0,), ())]


def test_a_dependency_through_a_removed_node_may_become_one_on_the_step_before() -> None:
    graph = line()
    changed = renumbered(graph, list(graph.nodes[1:]))
    assert [(node.depends, node.depends_before) for node in changed.nodes] == [((), (2,)), ((0,), ()), ((1,), ())]


def test_a_removed_last_node_is_replaced_for_the_next_step_too() -> None:
    graph = line()
    changed = renumbered(graph, list(graph.nodes[:3]))
    assert changed.nodes[0].depends_before == (2,)


def test_replacements_take_the_place_of_a_removed_node() -> None:
    graph = line()
    added = [replace(graph.nodes[1], number=4 + at, lane=f"added {at}") for at in range(2)]
    kept = [node for node in graph.nodes if node.number != 1]
    changed = renumbered(graph, [*kept, *added], {1: (4, 5)})
    assert [node.number for node in changed.nodes] == [0, 1, 2, 3, 4]
    assert changed.nodes[1].depends == (3, 4)
    assert (changed.nodes[3].depends, changed.nodes[4].depends) == ((0,), (0,))


def test_scaling_rounds_durations_and_leaves_gaps_unless_told() -> None:
    nodes = Nodes()
    nodes.add((10, 15), gaps=(3, 4))
    (node,) = nodes.graph().nodes
    assert (scaled(node, 0.5).durations_ns, scaled(node, 0.5).gaps_ns) == ((5, 8), (3, 4))
    assert scaled(node, 2.0, gaps=True).gaps_ns == (6, 8)
