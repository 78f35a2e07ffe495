"""Ratios of time with a change to time without it, for groups of layers: `0-3:0.8,4-7:0.9`.

A ratio comes from a probe on the machine (`runner optimize`) or from the text. It holds for the parts before it that
have none of their own: `0-3,6:0.7`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.layers import named
from keras_matrix.analysis.whatif.what_ifs.rewriting import scaled
from keras_matrix.analysis.whatif.what_ifs.what_if import WhatIfError

WORKING = frozenset({NodeKind.COMPUTE, NodeKind.HOST})


@dataclass(frozen=True, slots=True)
class LayerRatio:
    """A group of layers, as `layers.named` reads it, and its ratio; None if it is not known."""

    text: str
    ratio: float | None = None


def parse(name: str, text: str) -> tuple[LayerRatio, ...]:
    """Return the parts of a text. Raises `WhatIfError`."""
    parts: list[LayerRatio] = []
    for piece in text.split(","):
        layers, colon, ratio = piece.partition(":")
        if not layers:
            raise WhatIfError(f"{name}: must be layers, with the ratio of their times, such as 0-3:0.8, got {text!r}")
        parts.append(LayerRatio(layers))
        if colon:
            value = _ratio(name, ratio)
            parts = [one if one.ratio is not None else replace(one, ratio=value) for one in parts]
    return tuple(parts)


def _ratio(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise WhatIfError(f"{name}: must be a ratio of times such as 0.8, got {text!r}")
    return value


def layers_in(graph: Graph, name: str, parts: Sequence[LayerRatio]) -> list[tuple[tuple[str, ...], float | None]]:
    """Return the layers of each part, `a+b` being several names, and its ratio. Raises `WhatIfError`."""
    found = []
    for part in parts:
        layers = [layer for one in part.text.split("+") for layer in named(graph, one, name)]
        found.append((tuple(dict.fromkeys(layers)), part.ratio))
    return found


def belongs(node: Node, layers: frozenset[str]) -> bool:
    """Return whether a node is work of these layers in the forward or backward pass."""
    return node.layer in layers and node.kind in WORKING and node.phase in ("forward", "backward", None)


def changing_work(graph: Graph, layers: Iterable[str]) -> list[Node]:
    """Return the work of these layers that a change of them can make faster.

    What keeps no core of a CPU busy, such as a sleep, keeps its time.
    """
    chosen, on_cpu = frozenset(layers), graph.header.device == "cpu"
    return [node for node in graph.nodes if belongs(node, chosen) and (node.cores > 0 or not on_cpu)]


def multiplied(graph: Graph, layers: Sequence[str], ratio: float, *, gaps: bool = False) -> Graph:
    """Return the graph with the `changing_work` of these layers multiplied; with `gaps` also the gaps before."""
    numbers = {node.number for node in changing_work(graph, layers)}
    return graph.with_nodes(scaled(node, ratio, gaps=gaps) if node.number in numbers else node for node in graph.nodes)
