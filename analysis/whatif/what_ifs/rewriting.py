"""Removes, adds and scales nodes of a graph. Nodes get new numbers; what depended on them follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, Node


def scaled(node: Node, factor: float, *, gaps: bool = False) -> Node:
    """Return a node whose durations, and with `gaps` also the gaps before it, are multiplied."""
    changed = replace(node, durations_ns=tuple(round(value * factor) for value in node.durations_ns))
    return replace(changed, gaps_ns=tuple(round(value * factor) for value in node.gaps_ns)) if gaps else changed


def renumbered(
    graph: Graph, nodes: Sequence[Node], instead: Mapping[int, Sequence[int]] | None = None, **header: Any
) -> Graph:
    """Return the checked graph of these nodes, in their order.

    Their numbers are those of the old graph, or new ones beyond them. A dependency on a node that is missing becomes
    one on those that `instead` names for it, or otherwise on what the missing node depended on.
    """
    position = {node.number: at for at, node in enumerate(nodes)}
    removed = {node.number: node for node in graph.nodes if node.number not in position}
    found: dict[tuple[int, bool], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def resolved(number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what a dependency has become: nodes of the same step, and of the step before."""
        if number in position:
            return (position[number],), ()
        if instead is not None and number in instead:
            return tuple(position[one] for one in instead[number]), ()
        key = number, True
        if key not in found:
            found[key] = (), ()  # ends a cycle; a checked graph has none within a step
            found[key] = both(removed[number].depends, removed[number].depends_before)
        return found[key]

    def both(depends: Iterable[int], depends_before: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        same: list[int] = []
        before: list[int] = []
        for number in depends:
            own, earlier = resolved(number)
            same += own
            before += earlier
        for number in depends_before:
            before += resolved(number)[0]  # two steps back is always earlier than what else is waited for
        return tuple(dict.fromkeys(same)), tuple(dict.fromkeys(before))

    made = []
    for at, node in enumerate(nodes):
        depends, depends_before = both(node.depends, node.depends_before)
        depends = tuple(one for one in depends if one != at)
        same = (at, depends, depends_before) == (node.number, node.depends, node.depends_before)
        made.append(node if same else replace(node, number=at, depends=depends, depends_before=depends_before))
    return graph.with_nodes(made, **header)
