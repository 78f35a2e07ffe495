"""The gradients of a data-parallel graph: their bytes, when each is complete on each rank, and the sums over ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.graph import Collective, Graph, Node
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIfError


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient: `ready` has, for each traced rank, the nodes that must have ended for it to be complete."""

    bytes: int
    layer: str | None
    ready: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sums:
    """The gradients in the order of their completion, and the collectives that sum them: a node for each rank.

    `groups` are the positions of the gradients in each traced collective. `is_exact` is False if the trace does not
    say when each gradient was complete: then all of a traced collective count as complete when it could start.
    """

    gradients: tuple[Gradient, ...]
    collectives: tuple[Mapping[int, Node], ...]
    groups: tuple[tuple[int, ...], ...]
    is_exact: bool

    @property
    def nodes(self) -> Iterator[Node]:
        """The nodes of all collectives."""
        return (node for members in self.collectives for node in members.values())


def sums_of(graph: Graph) -> Sums:
    """Return the sums of gradients in a graph. Raises `WhatIfError` if it has none."""
    collectives = _collectives(graph)
    tensors = [(at, tensor) for at, members in enumerate(collectives) for tensor in _tensors(members)]
    ranks = sorted(collectives[0])
    made = {rank: [node for node in graph.nodes if node.rank == rank and node.gradient_of] for rank in ranks}
    layers = [layer for _, (_, layer) in tensors]
    matched = {rank: found for rank in ranks if (found := _matched(layers, made[rank])) is not None}
    order = list(range(len(tensors)))
    if len(matched) == len(ranks):
        order.sort(key=matched[ranks[0]].__getitem__)
    else:
        matched = {}
    gradients = []
    for at in order:
        of, (size, layer) = tensors[at]
        ready = {rank: (matched[rank][at],) if matched else collectives[of][rank].depends for rank in ranks}
        gradients.append(Gradient(size, layer, ready))
    position = {at: place for place, at in enumerate(order)}
    groups: dict[int, list[int]] = defaultdict(list)
    for at, (of, _) in enumerate(tensors):
        groups[of].append(position[at])
    in_groups = tuple(tuple(sorted(groups[at])) for at in sorted(groups))
    is_exact = bool(matched) or len(tensors) == len(collectives)
    return Sums(tuple(gradients), tuple(collectives), in_groups, is_exact)


def _collectives(graph: Graph) -> list[Mapping[int, Node]]:
    """Return the all-reduces of gradients, in their order: those with known gradients, or else all of any size."""
    found: dict[tuple[str, int], dict[int, Node]] = defaultdict(dict)
    for node in graph.nodes:
        if (one := node.collective) is not None and one.operation == "all_reduce" and one.bytes:
            found[one.group, one.ordinal][node.rank] = node
    known = {key: members for key, members in found.items() if any(one.tensors for one in _of(members.values()))}
    chosen = known or found
    if not chosen:
        raise WhatIfError(f"{graph.header.source} has no all-reduce with its bytes; trace two workers")
    if len({group for group, _ in chosen}) > 1:
        groups = ", ".join(sorted({repr(group) for group, _ in chosen}))
        text = f"{graph.header.source} has all-reduces of several groups: {groups}"
        raise WhatIfError(f"{text}; only data-parallel steps can have other sums")
    return [chosen[key] for key in sorted(chosen)]


def _of(nodes: Iterable[Node]) -> Iterator[Collective]:
    return (node.collective for node in nodes if node.collective is not None)


def _tensors(members: Mapping[int, Node]) -> list[tuple[int, str | None]]:
    """Return the bytes and the layer of each gradient in a collective; a single one if they are not known."""
    one = next(_of(members.values()))
    if not one.tensors:
        return [(one.bytes, None)]
    layers = one.tensor_layers if len(one.tensor_layers) == len(one.tensors) else (None,) * len(one.tensors)
    return list(zip(one.tensors, layers, strict=True))


def _matched(layers: Sequence[str | None], made: Sequence[Node]) -> list[int] | None:
    """Return the node that completes each gradient: the next one of its layer, or the one at its position.

    A layer with one node for several gradients completes all of them with it. None if the nodes do not fit.
    """
    by_layer: dict[str | None, list[int]] = defaultdict(list)
    for node in made:
        by_layer[node.gradient_of].append(node.number)
    if all(layer in by_layer for layer in layers):
        used: dict[str | None, int] = defaultdict(int)
        found = []
        for layer in layers:
            numbers = by_layer[layer]
            found.append(numbers[min(used[layer], len(numbers) - 1)])
            used[layer] += 1
        return found
    return [node.number for node in made] if len(made) == len(layers) else None
