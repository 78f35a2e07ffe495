"""Layers whose forward pass runs again in the backward pass, so that fewer of their inputs are retained.

The layers form segments. The forward pass of a segment runs again before the backward pass of its last layer. What
must exist again is the input of each layer: the last layer of a segment is only needed for its own activation, and if
it has none, as in the workload `fc`, no backend runs it again (PyTorch stops a recomputation early, and compilers
remove results that nothing needs).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.what_ifs.layers import ALL, layers_of, named
from keras_matrix.analysis.whatif.what_ifs.rewriting import renumbered
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc, setting
from keras_matrix.records.fc import layer_groups

NAME = "recomputation"


def parse(text: str) -> tuple[str, ...]:
    """Return the segments of a text such as `all` or `0-3,4-7`; `all` has about the square root of the layers each."""
    if not text or not all(text.split(",")):
        raise WhatIfError(f"{NAME}: must be all, or segments of layers such as 0-3,4-7, got {text!r}")
    return tuple(text.split(","))


def segments_of(graph: Graph, texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the layers of each segment. Raises `WhatIfError`."""
    if tuple(texts) != (ALL,):
        return [named(graph, text, NAME) for text in texts]
    known = named(graph, ALL, NAME)
    divided = layer_groups.segments(len(known), "", recompute=True)
    return [tuple(known[unit.start] for unit in segment) for segment in divided]


def change(graph: Graph, texts: Sequence[str], predict: Predict | None = None) -> Graph:
    """Return the graph in which segments run forward again. Raises `WhatIfError` without phases and layers."""
    segments = segments_of(graph, texts)
    return recomputed(graph, segments)


def recomputed(graph: Graph, segments: Sequence[Sequence[str]]) -> Graph:
    """Return the graph with these segments, each a list of layers."""
    before: dict[int, list[Node]] = defaultdict(list)  # copies, by the number of the node that they precede
    first, found = len(graph.nodes), False
    for rank in range(graph.header.world_size):
        for segment in segments:
            chosen = frozenset(segment)
            own = [node for node in graph.nodes if node.rank == rank and node.layer in chosen]
            backward = [node for node in own if node.phase == "backward" and node.collective is None]
            again = [node for node in own if node.phase == "forward" and node.collective is None]
            found = found or bool(backward and again)
            if _is_linear(graph):
                again = [node for node in again if node.layer != segment[-1]]
            if not (backward and again):
                continue
            start = backward[0]
            lanes = {node.lane for node in again}
            # On a lane of its own the forward pass would run at once; it belongs to the thread of the backward pass.
            lane = start.lane if len(lanes) == 1 else None
            numbers = {node.number: first + at for at, node in enumerate(again)}
            for node in again:
                depends = tuple(numbers[one] for one in node.depends if one in numbers)
                if node is again[0]:
                    depends = (*depends, *start.depends)
                copy = replace(
                    *(node,), number=numbers[node.number], depends=depends, depends_before=(), phase="backward"
                )
                before[start.number].append(copy if lane is None else replace(copy, lane=lane))
            first += len(again)
    if not found:
        raise WhatIfError(f"{NAME}: no layer of {graph.header.source} has a forward and a backward phase")
    return renumbered(graph, [one for node in graph.nodes for one in (*before[node.number], node)])


def _is_linear(graph: Graph) -> bool:
    """Return whether layers are products alone, whose backward pass needs their inputs and not their outputs."""
    return setting(graph, "workload") == "fc" and not setting(graph, "forward_sleep_ms", 0)


def settings(graph: Graph, texts: Sequence[str]) -> Realised:
    """Return the parameter `recompute`, which divides the layers itself."""
    chosen = segments_of(graph, texts)
    if chosen != segments_of(graph, (ALL,)) or not layers_of(graph):
        return Realised(None, "the parameter recompute forms its own segments; choose all")
    return of_fc(graph, "recompute", {"recompute": True})


RECOMPUTATION = WhatIf(
    NAME,
    "layers whose forward pass runs again in the backward pass, to retain less",
    "all, or SEGMENTS of layers, such as 0-3,4-7",
    parse,
    change,
    settings,
)
