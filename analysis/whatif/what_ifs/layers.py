"""What-ifs that change layers: blocks fused into one program, layers in bfloat16, and forward passes run again to
retain less; and the texts that name them.

A text is `0-3,6`, `conv1,dense_2` or `all`, with ratios `0-3:0.8,4-7:0.9`: the time with the change to that without it.
A ratio is a probe's on the machine (`runner optimize`), the user's, or a cost model's for each operation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.what_if import (
    Predict,
    Realised,
    WhatIf,
    WhatIfError,
    of_fc,
    renumbered,
    scaled,
    setting,
)
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc import rules

RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
NUMBERED = re.compile(r"layer_([0-9]+)", re.ASCII)
ALL = "all"
FUSED = "op_fusion"
REDUCED = "precision"
DTYPE, WIDER = "bfloat16", ("float64", "float32")
RECOMPUTED = "recomputation"
WORKING = frozenset({NodeKind.COMPUTE, NodeKind.HOST})


def layers_of(graph: Graph) -> tuple[str, ...]:
    """Return the names of the layers, in the order in which the forward pass reaches them."""
    layer_nodes = [node for node in graph.nodes if node.layer is not None]
    forward = [node for node in layer_nodes if node.phase == "forward"]
    names = dict.fromkeys(node.layer for node in (*forward, *layer_nodes) if node.layer is not None)
    if names and all(NUMBERED.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: int(name.rpartition("_")[2])))
    return tuple(names)


def named(graph: Graph, text: str, what_if: str) -> tuple[str, ...]:
    """Return the layers that a text names: `a-b` are numbers from 0, anything else is a name. Raises `WhatIfError`."""
    layer_names = layers_of(graph)
    if not layer_names:
        raise WhatIfError(f"{what_if}: no operation of {graph.header.source} has a layer; trace with layers")
    if text == ALL:
        return layer_names
    chosen_layers: list[str] = []
    for part in text.split(","):
        if part in layer_names:
            chosen_layers.append(part)
        elif match := RANGE.fullmatch(part):
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < len(layer_names):
                raise WhatIfError(f"{what_if}: must be layers from 0 to {len(layer_names) - 1}, got {part!r}")
            chosen_layers += layer_names[first : last + 1]
        else:
            raise WhatIfError(f"{what_if}: has no layer {part!r}; layers are {', '.join(layer_names[:8])}")
    return tuple(dict.fromkeys(chosen_layers))


def as_text(graph: Graph, layers: Sequence[str]) -> str:
    """Return layers as numbers and ranges of them, such as `0-3,6`."""
    layer_names = layers_of(graph)
    numbers = sorted(layer_names.index(name) for name in layers)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


def fused(graph: Graph, layer_ratios: Sequence[LayerRatio], predict: Predict | None = None) -> Graph:
    """Return the graph with fused blocks. Raises `WhatIfError` for a block without a ratio.

    A block is compiled as one program. Its ratio covers all of the block's work in the forward and backward pass, and
    the gaps between its operations.
    """
    for layers, ratio in layers_in(graph, FUSED, layer_ratios):
        if ratio is None:
            block = as_text(graph, layers)
            raise WhatIfError(
                f"{FUSED}: the gain of block {block} is not known; give the ratio of its times, such as {block}:0.8, or"
                " use runner optimize --search op_fusion, which probes it"
            )
        graph = multiplied(graph, layers, ratio, gaps=True)
    return graph


def fusion_settings(graph: Graph, layer_ratios: Sequence[LayerRatio]) -> Realised:
    """Return the parameter `fuse` of the workload `fc`, whose blocks are in the order of the layers."""
    blocks = [as_text(graph, layers) for layers, _ in layers_in(graph, FUSED, layer_ratios)]
    if any("," in block for block in blocks):
        return Realised(None, "the layers of a block must follow one another")
    blocks.sort(key=lambda block: int(block.partition("-")[0]))
    return of_fc(graph, "fuse", {"fuse": ",".join(blocks)})


def parse_ratios(name: str, text: str) -> tuple[LayerRatio, ...]:
    """Return the parts of a text. Raises `WhatIfError`.

    A ratio holds for the parts before it that have none of their own: `0-3,6:0.7`.
    """
    layer_ratios: list[LayerRatio] = []
    for piece in text.split(","):
        layers, colon, ratio = piece.partition(":")
        if not layers:
            raise WhatIfError(f"{name}: must be layers, with the ratio of their times, such as 0-3:0.8, got {text!r}")
        layer_ratios.append(LayerRatio(layers))
        if colon:
            value = _ratio(name, ratio)
            layer_ratios = [
                layer_ratio if layer_ratio.ratio is not None else replace(layer_ratio, ratio=value)
                for layer_ratio in layer_ratios
            ]
    return tuple(layer_ratios)


OP_FUSION = WhatIf(
    FUSED,
    "blocks of layers that are each compiled as one program",
    "BLOCKS with ratios of their times, such as 0-3:0.8,4-7:0.9",
    partial(parse_ratios, FUSED),
    fused,
    fusion_settings,
)


def in_lower_precision(graph: Graph, layer_ratios: Sequence[LayerRatio], predict: Predict | None = None) -> Graph:
    """Return the graph with these layers in bfloat16. Raises `WhatIfError` if the effect on one is not known.

    Weights, gradients and updates stay in float32. Without a ratio for the layer, each operation's is that of the times
    that a cost model predicts in both types. The conversions of inputs and outputs are in a probed ratio only.
    """
    for layers, ratio in layers_in(graph, REDUCED, layer_ratios):
        if ratio is not None:
            graph = multiplied(graph, layers, ratio)
            continue
        chosen_layers = frozenset(layers)
        ratios = {node.number: _cast_ratio(node, predict) for node in graph.nodes if belongs(node, chosen_layers)}
        if not any(ratios.values()):
            text = as_text(graph, layers)
            raise WhatIfError(
                f"{REDUCED}: the effect on layers {text} is not known; give the ratio of their times, such as "
                f"{text}:0.7, use runner optimize --search amp, which probes it, or name a cost model with --costmodel "
                "FILE"
            )
        graph = graph.with_nodes(scaled(node, ratios.get(node.number) or 1.0) for node in graph.nodes)
    return graph


def _cast_ratio(node: Node, predict: Predict | None) -> float | None:
    """Return the predicted time of a node in bfloat16 by that in its own type; None if it is not known."""
    if predict is None or node.dtype not in WIDER:
        return None
    size = node.bytes and node.bytes * ELEMENT_BYTES[DTYPE] // ELEMENT_BYTES[node.dtype]
    before, after = predict(node), predict(replace(node, dtype=DTYPE, bytes=size))
    return after / before if before and after else None


def precision_settings(graph: Graph, layer_ratios: Sequence[LayerRatio]) -> Realised:
    """Return the parameter `amp` of the workload `fc`; for other workloads `precision`, if all layers are chosen."""
    chosen_layers = dict.fromkeys(layer for layers, _ in layers_in(graph, REDUCED, layer_ratios) for layer in layers)
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    if setting(graph, "workload") == "fc":
        return Realised({"amp": as_text(graph, tuple(chosen_layers))})
    if set(chosen_layers) == set(layers_of(graph)):
        return Realised({"precision": "mixed_bfloat16"})
    return Realised(None, "only the workload fc has a precision for each layer; choose all of them")


PRECISION = WhatIf(
    REDUCED,
    "layers that compute in bfloat16",
    "LAYERS, such as all or 0-3, with the ratio of their times, such as 0-3:0.7",
    partial(parse_ratios, REDUCED),
    in_lower_precision,
    precision_settings,
    changes_numerics=True,
)


def parse_segments(text: str) -> tuple[str, ...]:
    """Return the segments of a text such as `all` or `0-3,4-7`; `all` has about the square root of the layers each."""
    if not text or not all(text.split(",")):
        raise WhatIfError(f"{RECOMPUTED}: must be all, or segments of layers such as 0-3,4-7, got {text!r}")
    return tuple(text.split(","))


def segments_of(graph: Graph, texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the layers of each segment. Raises `WhatIfError`."""
    if tuple(texts) != (ALL,):
        return [named(graph, text, RECOMPUTED) for text in texts]
    layer_names = named(graph, ALL, RECOMPUTED)
    unit_segments = rules.segments(len(layer_names), "", recompute=True)
    return [tuple(layer_names[unit.start] for unit in segment) for segment in unit_segments]


def with_recomputation(graph: Graph, texts: Sequence[str], predict: Predict | None = None) -> Graph:
    """Return the graph in which segments run forward again. Raises `WhatIfError` without phases and layers.

    The forward pass of a segment runs again before the backward pass of its last layer. What must exist again is the
    input of each layer: the last layer of a segment is only needed for its own activation, and if it has none, as in
    the workload `fc`, no backend runs it again (PyTorch stops a recomputation early, and compilers remove results that
    nothing needs).
    """
    segments = segments_of(graph, texts)
    return recomputed(graph, segments)


def recomputed(graph: Graph, segments: Sequence[Sequence[str]]) -> Graph:
    """Return the graph with these segments, each a list of layers."""
    nodes_before: dict[int, list[Node]] = defaultdict(list)  # copies, by the number of the node that they precede
    first_number, has_repeated = len(graph.nodes), False
    for rank in range(graph.header.world_size):
        for segment in segments:
            chosen_layers = frozenset(segment)
            rank_nodes = [node for node in graph.nodes if node.rank == rank and node.layer in chosen_layers]
            backward = [node for node in rank_nodes if node.phase == "backward" and node.collective is None]
            repeated_nodes = [node for node in rank_nodes if node.phase == "forward" and node.collective is None]
            has_repeated = has_repeated or bool(backward and repeated_nodes)
            if _is_linear(graph):
                repeated_nodes = [node for node in repeated_nodes if node.layer != segment[-1]]
            if not (backward and repeated_nodes):
                continue
            start = backward[0]
            lanes = {node.lane for node in repeated_nodes}
            # On a lane of its own the forward pass would run at once; it belongs to the thread of the backward pass.
            lane = start.lane if len(lanes) == 1 else None
            numbers = {node.number: first_number + index for index, node in enumerate(repeated_nodes)}
            for node in repeated_nodes:
                depends = tuple(numbers[number] for number in node.depends if number in numbers)
                if node is repeated_nodes[0]:
                    depends = (*depends, *start.depends)
                copy = replace(
                    *(node,), number=numbers[node.number], depends=depends, depends_before=(), phase="backward"
                )
                nodes_before[start.number].append(copy if lane is None else replace(copy, lane=lane))
            first_number += len(repeated_nodes)
    if not has_repeated:
        raise WhatIfError(f"{RECOMPUTED}: no layer of {graph.header.source} has a forward and a backward phase")
    return renumbered(graph, [placed for node in graph.nodes for placed in (*nodes_before[node.number], node)])


def _is_linear(graph: Graph) -> bool:
    """Return whether layers are products alone, whose backward pass needs their inputs and not their outputs."""
    return setting(graph, "workload") == "fc" and not setting(graph, "forward_sleep_ms", 0)


def recomputation_settings(graph: Graph, texts: Sequence[str]) -> Realised:
    """Return the parameter `recompute`, which divides the layers itself."""
    chosen_segments = segments_of(graph, texts)
    if chosen_segments != segments_of(graph, (ALL,)) or not layers_of(graph):
        return Realised(None, "the parameter recompute forms its own segments; choose all")
    return of_fc(graph, "recompute", {"recompute": True})


RECOMPUTATION = WhatIf(
    RECOMPUTED,
    "layers whose forward pass runs again in the backward pass, to retain less",
    "all, or SEGMENTS of layers, such as 0-3,4-7",
    parse_segments,
    with_recomputation,
    recomputation_settings,
)


@dataclass(frozen=True, slots=True)
class LayerRatio:
    """A group of layers, as `layers.named` reads it, and its ratio; None if it is not known."""

    text: str
    ratio: float | None = None


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
    layer_ratios = []
    for part in parts:
        layers = [layer for layer_text in part.text.split("+") for layer in named(graph, layer_text, name)]
        layer_ratios.append((tuple(dict.fromkeys(layers)), part.ratio))
    return layer_ratios


def belongs(node: Node, layers: frozenset[str]) -> bool:
    """Return whether a node is work of these layers in the forward or backward pass."""
    return node.layer in layers and node.kind in WORKING and node.phase in ("forward", "backward", None)


def changing_work(graph: Graph, layers: Iterable[str]) -> list[Node]:
    """Return the work of these layers that a change of them can make faster.

    What keeps no core of a CPU busy, such as a sleep, keeps its time.
    """
    chosen_layers, on_cpu = frozenset(layers), graph.header.device == "cpu"
    return [node for node in graph.nodes if belongs(node, chosen_layers) and (node.cores > 0 or not on_cpu)]


def multiplied(graph: Graph, layers: Sequence[str], ratio: float, *, gaps: bool = False) -> Graph:
    """Return the graph with the `changing_work` of these layers multiplied; with `gaps` also the gaps before."""
    numbers = {node.number for node in changing_work(graph, layers)}
    return graph.with_nodes(scaled(node, ratio, gaps=gaps) if node.number in numbers else node for node in graph.nodes)
