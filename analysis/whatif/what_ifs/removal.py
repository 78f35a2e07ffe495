"""A step without overlap of communication, and one without input stalls: what each of them costs or saves."""

from __future__ import annotations

from dataclasses import replace

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.gradients import sums_of
from keras_matrix.analysis.whatif.what_ifs.tensor_fusion import with_groups
from keras_matrix.analysis.whatif.what_ifs.what_if import (
    Predict,
    Realised,
    WhatIf,
    WhatIfError,
    no_value,
    of_fc,
    setting,
)
from keras_matrix.records.fc import rules

OVERLAP, STALLS = "no_overlap", "no_input_stalls"


def without_overlap(graph: Graph, value: None = None, predict: Predict | None = None) -> Graph:
    """Return the graph whose gradients are summed after the backward pass, one sum after the other.

    The workload `fc` sums each gradient by itself then; other graphs keep their buckets.
    """
    sums = sums_of(graph)
    alone = [[at] for at in range(len(sums.gradients))]
    groups = alone if setting(graph, "workload") == "fc" else [list(one) for one in sums.groups]
    changed = with_groups(graph, sums, groups, overlap=False)
    lanes = {node.lane for node in changed.nodes if node.collective is not None}
    at_a_time = {lane: count for lane, count in changed.header.parallel_lanes.items() if lane not in lanes}
    return changed.with_nodes(changed.nodes, parallel_lanes=at_a_time)


def overlap_settings(graph: Graph, value: None = None) -> Realised:
    """Return the parameter `overlap`; without overlap each gradient is summed by itself, in no buckets."""
    grouped = {name: rules.DEFAULTS[name] for name in rules.GROUPING if setting(graph, name)}
    return of_fc(graph, "overlap", {"overlap": "off", **grouped})


def without_input_stalls(graph: Graph, value: None = None, predict: Predict | None = None) -> Graph:
    """Return the graph whose input is there at once. Raises `WhatIfError` if it has no input."""

    def instant(node: Node) -> Node:
        if node.kind is not NodeKind.INPUT and node.phase != "input":
            return node
        return replace(
            node, durations_ns=(0,) * len(node.durations_ns), gaps_ns=(0,) * len(node.gaps_ns), depends_before=()
        )

    nodes = [instant(node) for node in graph.nodes]
    if nodes == list(graph.nodes):
        raise WhatIfError(f"{STALLS}: {graph.header.source} has no operation of an input pipeline")
    return graph.with_nodes(nodes)


def stalls_settings(graph: Graph, value: None = None) -> Realised:
    """Return the feed whose batches are on the device before the step."""
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    return Realised({"feed": "device_resident"})


NO_OVERLAP = WhatIf(
    OVERLAP, "gradients are summed after the backward pass", "", no_value(OVERLAP), without_overlap, overlap_settings
)
NO_INPUT_STALLS = WhatIf(
    STALLS, "batches are there at once", "", no_value(STALLS), without_input_stalls, stalls_settings
)
