"""What a what-if is: a change of a graph, with its text and the settings that realise it.

Removes, adds and scales nodes of a graph. Nodes get new numbers; what depended on them follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_matrix.analysis.whatif.graph import Graph, GraphError, Node
from keras_matrix.analysis.whatif.replay import exclusive
from keras_matrix.records.fc import spec
from keras_matrix.records.identity import SETTINGS

Scalar = bool | int | float | str
# Seconds of an operation that no trace has, such as a cost model predicts; None if it does not know.
Predict = Callable[[Node], float | None]


class WhatIfError(GraphError):
    """A what-if that is not known, or has a value that does not fit; the message says which and what fits."""


@dataclass(frozen=True, slots=True)
class Realised:
    """The settings of the matrix, or parameters of the workload, that a cell must have; None if no cell can have them.

    `reason` says why the prediction cannot be verified, or what the settings do not cover.
    """

    settings: Mapping[str, Scalar] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A what-if. `change` and `settings` get a graph whose durations are free of contention, and a parsed value.

    `value` is the form of its text, empty if it has none. `changes_numerics`: a cell that realises it may reach another
    loss, so that its loss must be compared before its speed counts.
    """

    name: str
    meaning: str
    value: str
    parse: Callable[[str], Any]
    change: Callable[[Graph, Any, Predict | None], Graph]
    settings: Callable[[Graph, Any], Realised]
    changes_numerics: bool = False

    def apply(self, graph: Graph, value: Any, predict: Predict | None = None) -> Graph:
        """Return the changed graph, with the settings that realise it. Raises `GraphError` if that is impossible."""
        graph = exclusive(graph)
        realised = self.settings(graph, value)
        changed_graph = self.change(graph, value, predict)
        settings = {**changed_graph.header.settings, **(realised.settings or {})}
        return replace(changed_graph, header=replace(changed_graph.header, settings=settings))


def whole(name: str, least: int = 1) -> Callable[[str], int]:
    """Return a parser of an integer of at least `least`."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise WhatIfError(f"{name}: must be an integer of at least {least}, got {text!r}")
        return int(text)

    return parse


def no_value(name: str) -> Callable[[str], None]:
    """Return a parser of a what-if that has no value."""

    def parse(text: str) -> None:
        if text:
            raise WhatIfError(f"{name}: has no value, got {text!r}; write --what-if {name}")

    return parse


def of_fc(graph: Graph, parameter: str, settings: Mapping[str, Scalar]) -> Realised:
    """Return settings that only cells of the workload `fc` have, or why no cell can have them."""
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    if (workload := setting(graph, "workload")) != "fc":
        return Realised(None, f"only the workload fc has the parameter {parameter}, not {workload}")
    return Realised(settings)


def setting(graph: Graph, name: str, default: Any = None) -> Any:
    """Return a setting of the traced cell, or a parameter of the workload `fc`; `default` if it is unknown."""
    settings = graph.header.settings
    return settings.get(name, default) if name in SETTINGS else spec.parameter(settings, name, default)


def scaled(node: Node, factor: float, *, gaps: bool = False) -> Node:
    """Return a node whose durations, and with `gaps` also the gaps before it, are multiplied."""
    changed_node = replace(node, durations_ns=tuple(round(duration_ns * factor) for duration_ns in node.durations_ns))
    return (
        replace(changed_node, gaps_ns=tuple(round(gap_ns * factor) for gap_ns in node.gaps_ns))
        if gaps
        else changed_node
    )


def in_order(
    graph: Graph, nodes: Sequence[Node], placed_nodes: Sequence[Node], replacements: Mapping[int, Sequence[int]]
) -> list[Node]:
    """Return nodes of a graph and new collectives, so that each comes behind what it depends on.

    A lane runs its nodes in their order, and a collective may be on the lane of its rank's operations. A new one comes
    directly behind what it waits for, and behind the collectives of its lane before the first one that is missing. A
    node stays where it is unless something that it waits for, by `replacements` for a missing one, comes later now.
    """
    all_nodes = (*nodes, *placed_nodes)
    index = {node.number: index for index, node in enumerate(all_nodes)}
    depends = {node.number: _resolved(node, index, replacements) for node in all_nodes}
    last_on_lane: dict[tuple[int, str], int] = {}
    for node in nodes:
        first_number = min((number for number in replacements if graph.nodes[number].rank == node.rank), default=0)
        if node.collective is not None and node.number < first_number:
            last_on_lane[node.rank, node.lane] = node.number
    for node in placed_nodes:
        lane = node.rank, node.lane
        if lane in last_on_lane:
            depends[node.number].append(last_on_lane[lane])
        last_on_lane[lane] = node.number
    floating = {node.number for node in placed_nodes}
    places: dict[int, tuple[int, int]] = {}
    for number in _dependencies_first(depends):
        places_behind = [
            (places[number_before][0], places[number_before][1] + 1)
            for number_before in depends[number]
            if number_before in places
        ]
        places[number] = max(
            places_behind if number in floating else [(index[number], 0), *places_behind], default=(-1, 0)
        )
    return sorted(all_nodes, key=lambda node: (places[node.number], index[node.number]))


def _resolved(node: Node, present: Mapping[int, int], replacements: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the present nodes that a node depends on."""
    return [
        target for other in node.depends for target in ([other] if other in present else replacements.get(other, ()))
    ]


def _dependencies_first(depends: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the numbers of nodes, each behind those that it depends on if they form no circle."""
    ordered: dict[int, None] = {}
    entered: set[int] = set()
    for start in depends:
        stack = [start]
        while stack:
            number = stack[-1]
            waiting_numbers = (
                []
                if number in entered
                else [number_before for number_before in depends[number] if number_before not in entered]
            )
            entered.add(number)
            if waiting_numbers:
                stack += waiting_numbers
            else:
                ordered.setdefault(stack.pop())
    return list(ordered)


def renumbered(
    graph: Graph, nodes: Sequence[Node], replacements: Mapping[int, Sequence[int]] | None = None, **header: Any
) -> Graph:
    """Return the checked graph of these nodes, in their order.

    Their numbers are those of the old graph, or new ones beyond them. A dependency on a node that is missing becomes
    one on those that `replacements` names for it, or otherwise on what the missing node depended on.
    """
    position = {node.number: index for index, node in enumerate(nodes)}
    removed_nodes = {node.number: node for node in graph.nodes if node.number not in position}
    resolutions: dict[tuple[int, bool], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def resolved(number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what a dependency has become: nodes of the same step, and of the step before."""
        if number in position:
            return (position[number],), ()
        if replacements is not None and number in replacements:
            return tuple(position[target] for target in replacements[number]), ()
        key = number, True
        if key not in resolutions:
            resolutions[key] = (), ()  # ends a cycle; a checked graph has none within a step
            resolutions[key] = both(removed_nodes[number].depends, removed_nodes[number].depends_before)
        return resolutions[key]

    def both(depends: Iterable[int], depends_before: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        same_step: list[int] = []
        targets_before: list[int] = []
        for number in depends:
            own_targets, earlier_targets = resolved(number)
            same_step += own_targets
            targets_before += earlier_targets
        for number in depends_before:
            targets_before += resolved(number)[0]  # two steps back is always earlier than what else is waited for
        return tuple(dict.fromkeys(same_step)), tuple(dict.fromkeys(targets_before))

    new_nodes = []
    for index, node in enumerate(nodes):
        depends, depends_before = both(node.depends, node.depends_before)
        depends = tuple(target for target in depends if target != index)
        is_same = (index, depends, depends_before) == (node.number, node.depends, node.depends_before)
        new_nodes.append(
            node if is_same else replace(node, number=index, depends=depends, depends_before=depends_before)
        )
    return graph.with_nodes(new_nodes, **header)
