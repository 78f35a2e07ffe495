"""Chooses blocks of layers to fuse, or layers to compute in bfloat16, by the ratio of times that a probe measured.

Each candidate on the critical path is replayed alone. Then they are added, best first, as long as each makes the step
faster and shares no layer with one chosen before. Gains of one lane add up, and a gain that ends behind a collective
is lost: replay sees both, a sum of probed gains would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.replay import replay, step_time_s
from keras_matrix.analysis.whatif.search.trajectory import (
    LEAST_GAIN,
    ReplayedTrial,
    Trajectory,
    TrialCollector,
    critical_nodes,
    skipped,
)
from keras_matrix.analysis.whatif.what_ifs import op_fusion, precision
from keras_matrix.analysis.whatif.what_ifs.time_ratios import LayerRatio, belongs, layers_in

OP_FUSION, AMP = "op_fusion", "amp"
WHAT_IFS = {OP_FUSION: op_fusion.NAME, AMP: precision.NAME}


def search(graph: Graph, family: str, ratios: Mapping[str, float], *, before: Sequence[str] = ()) -> Trajectory:
    """Return the best choice of layers. `family` is `OP_FUSION` or `AMP`, `ratios` are by the text of the layers.

    A ratio is the time of the layers with the change by that without it. `before` are what-ifs that made the graph.
    Raises `GraphError` for layers that the graph does not have.
    """
    graph = exclusive(graph)
    baseline = replay(graph)
    if not ratios:
        return skipped(family, baseline, "no gain has been probed")
    name = WHAT_IFS[family]
    found = layers_in(graph, name, [LayerRatio(text, ratio) for text, ratio in ratios.items()])
    layers = {text: frozenset(own) for text, (own, _) in zip(ratios, found, strict=True)}
    critical = critical_nodes(baseline)
    candidates = [text for text, own in layers.items() if any(belongs(node, own) for node in critical)]
    if not candidates:
        return skipped(family, baseline, "no operation of a layer with a probed gain is on the critical path")
    trials = TrialCollector(graph, tuple(before))
    alone = {text: trials.replayed([f"{name}={text}:{ratios[text]:g}"]) for text in candidates}
    chosen: list[str] = []
    lowest = step_time_s(graph)
    for text in sorted(candidates, key=lambda one: (alone[one], one)):
        if any(layers[text] & layers[other] for other in chosen):
            continue
        parts = ",".join(f"{one}:{ratios[one]:g}" for one in (*chosen, text))
        time = trials.replayed([f"{name}={parts}"]) if chosen else alone[text]
        if time < lowest * (1 - LEAST_GAIN):
            chosen.append(text)
            lowest = time
    return trials.finished(family, baseline, _ranked(trials.found))


def _ranked(trials: Sequence[ReplayedTrial]) -> list[ReplayedTrial]:
    """Return the trials, fastest first; of equal ones the one with fewer layers, which was tried first."""
    return sorted(trials, key=lambda one: one.step_time_s)
