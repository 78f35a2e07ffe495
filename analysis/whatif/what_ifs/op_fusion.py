"""Blocks of layers that are each compiled as one program, by the probed ratio of a block's times.

The ratio covers all of a block's work in the forward and backward pass, and the gaps between its operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.what_ifs import time_ratios
from keras_matrix.analysis.whatif.what_ifs.layers import as_text
from keras_matrix.analysis.whatif.what_ifs.time_ratios import LayerRatio, layers_in, multiplied
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc

NAME = "op_fusion"


def change(graph: Graph, parts: Sequence[LayerRatio], predict: Predict | None = None) -> Graph:
    """Return the graph with fused blocks. Raises `WhatIfError` for a block without a ratio."""
    for layers, ratio in layers_in(graph, NAME, parts):
        if ratio is None:
            block = as_text(graph, layers)
            raise WhatIfError(
                f"{NAME}: the gain of block {block} is not known; give the ratio of its times, such as {block}:0.8, or"
                " use runner optimize --search op_fusion, which probes it"
            )
        graph = multiplied(graph, layers, ratio, gaps=True)
    return graph


def settings(graph: Graph, parts: Sequence[LayerRatio]) -> Realised:
    """Return the parameter `fuse` of the workload `fc`, whose blocks are in the order of the layers."""
    blocks = [as_text(graph, layers) for layers, _ in layers_in(graph, NAME, parts)]
    if any("," in block for block in blocks):
        return Realised(None, "the layers of a block must follow one another")
    blocks.sort(key=lambda block: int(block.partition("-")[0]))
    return of_fc(graph, "fuse", {"fuse": ",".join(blocks)})


OP_FUSION = WhatIf(
    NAME,
    "blocks of layers that are each compiled as one program",
    "BLOCKS with ratios of their times, such as 0-3:0.8,4-7:0.9",
    partial(time_ratios.parse, NAME),
    change,
    settings,
)
