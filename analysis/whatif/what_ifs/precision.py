"""Layers that compute in bfloat16 with weights, gradients and updates in float32.

The time of a layer is multiplied by a ratio: a probed or given one, or that of the times that a cost model predicts
for each of its operations in both types. The conversions of inputs and outputs are in a probed ratio only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.what_ifs import time_ratios
from keras_matrix.analysis.whatif.what_ifs.layers import as_text, layers_of
from keras_matrix.analysis.whatif.what_ifs.rewriting import scaled
from keras_matrix.analysis.whatif.what_ifs.time_ratios import LayerRatio, belongs, layers_in, multiplied
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, setting
from keras_matrix.records.dtypes import ELEMENT_BYTES

NAME = "precision"
DTYPE, WIDER = "bfloat16", ("float64", "float32")


def change(graph: Graph, parts: Sequence[LayerRatio], predict: Predict | None = None) -> Graph:
    """Return the graph with these layers in bfloat16. Raises `WhatIfError` if the effect on one is not known."""
    for layers, ratio in layers_in(graph, NAME, parts):
        if ratio is not None:
            graph = multiplied(graph, layers, ratio)
            continue
        chosen = frozenset(layers)
        ratios = {node.number: _ratio(node, predict) for node in graph.nodes if belongs(node, chosen)}
        if not any(ratios.values()):
            text = as_text(graph, layers)
            raise WhatIfError(
                f"{NAME}: the effect on layers {text} is not known; give the ratio of their times, such as {text}:0.7,"
                " use runner optimize --search amp, which probes it, or name a cost model with --costmodel FILE"
            )
        graph = graph.with_nodes(scaled(node, ratios.get(node.number) or 1.0) for node in graph.nodes)
    return graph


def _ratio(node: Node, predict: Predict | None) -> float | None:
    """Return the predicted time of a node in bfloat16 by that in its own type; None if it is not known."""
    if predict is None or node.dtype not in WIDER:
        return None
    size = node.bytes and node.bytes * ELEMENT_BYTES[DTYPE] // ELEMENT_BYTES[node.dtype]
    before, after = predict(node), predict(replace(node, dtype=DTYPE, bytes=size))
    return after / before if before and after else None


def settings(graph: Graph, parts: Sequence[LayerRatio]) -> Realised:
    """Return the parameter `amp` of the workload `fc`; for other workloads `precision`, if all layers are chosen."""
    chosen = dict.fromkeys(layer for layers, _ in layers_in(graph, NAME, parts) for layer in layers)
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    if setting(graph, "workload") == "fc":
        return Realised({"amp": as_text(graph, tuple(chosen))})
    if set(chosen) == set(layers_of(graph)):
        return Realised({"precision": "mixed_bfloat16"})
    return Realised(None, "only the workload fc has a precision for each layer; choose all of them")


PRECISION = WhatIf(
    NAME,
    "layers that compute in bfloat16",
    "LAYERS, such as all or 0-3, with the ratio of their times, such as 0-3:0.7",
    partial(time_ratios.parse, NAME),
    change,
    settings,
    changes_numerics=True,
)
