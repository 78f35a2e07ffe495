"""The families of settings that a search may choose from, as a text says, and the search of several in sequence.

A text is names joined by commas: `tensor_fusion`, `op_fusion` (also `xla`), `amp`, `memory`, or `all`; `^memory` leaves
a family out. `from_opfs2tsfs` also tries buckets that follow the fused blocks (dPRO: tensors of fused operations are
fused, too).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.analysis.whatif.graph import Graph, GraphError
from keras_matrix.analysis.whatif.replay import replay
from keras_matrix.analysis.whatif.search import layer_choice, memory, tensor_fusion
from keras_matrix.analysis.whatif.search.memory import WorkerMemory
from keras_matrix.analysis.whatif.search.trajectory import Strategy, Trajectory, skipped
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.op_fusion import OP_FUSION
from keras_matrix.analysis.whatif.what_ifs.tensor_fusion import TENSOR_FUSION
from keras_matrix.analysis.whatif.what_ifs.time_ratios import layers_in
from keras_matrix.analysis.whatif.what_ifs.what_if import Scalar, WhatIfError

# In the order in which they are searched: what fits into memory comes first, and buckets follow the final compute.
FAMILIES = (memory.NAME, layer_choice.OP_FUSION, layer_choice.AMP, TENSOR_FUSION.name)
ALL, FROM_FUSION = "all", "from_opfs2tsfs"
ALIASES = {"xla": layer_choice.OP_FUSION, "precision": layer_choice.AMP}


@dataclass(frozen=True, slots=True)
class Families:
    """The chosen families, in the order of the search; `from_fusion` derives buckets from fused blocks."""

    names: tuple[str, ...]
    from_fusion: bool = False


@dataclass(frozen=True, slots=True)
class SearchInputs:
    """What searches need besides the graph: probed ratios by the text of their layers, and memory with its budget.

    Without a budget memory is not limited; without probes nothing is fused or computed in bfloat16.
    """

    fusion_ratios: Mapping[str, float] = field(default_factory=dict)
    amp_ratios: Mapping[str, float] = field(default_factory=dict)
    memory: WorkerMemory | None = None
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FamilyTrajectories:
    """The trajectories of all families, and the best strategies of all of them together, best first."""

    trajectories: tuple[Trajectory, ...]
    strategies: tuple[Strategy, ...]


def parse(text: str) -> Families:
    """Return the families of a text. Raises `WhatIfError`, which suggests a name that is near."""
    chosen: set[str] = set()
    without: set[str] = set()
    from_fusion = False
    for part in text.split(","):
        name = part.strip()
        if name == FROM_FUSION:
            from_fusion = True
            continue
        (without if name.startswith("^") else chosen).update(_families(name.removeprefix("^")))
    names = tuple(name for name in FAMILIES if name in ((chosen or set(FAMILIES)) - without))
    if not names:
        raise WhatIfError(f"--search: must leave a family, got {text!r}")
    if from_fusion and not {layer_choice.OP_FUSION, TENSOR_FUSION.name} <= set(names):
        raise WhatIfError(
            f"--search: {FROM_FUSION} derives buckets from fused blocks; search {layer_choice.OP_FUSION} and "
            f"{TENSOR_FUSION.name} too, got {text!r}"
        )
    return Families(names, from_fusion)


def _families(name: str) -> Sequence[str]:
    if name == ALL:
        return FAMILIES
    known = ALIASES.get(name, name)
    if known not in FAMILIES:
        near = difflib.get_close_matches(name, [*FAMILIES, *ALIASES, ALL, FROM_FUSION], n=1) if len(name) <= 64 else []
        advice = f"did you mean {near[0]}?" if near else f"known are {', '.join((*FAMILIES, ALL, FROM_FUSION))}"
        raise WhatIfError(f"--search: {name!r} is not known; {advice}")
    return (known,)


def search(graph: Graph, families: Families, inputs: SearchInputs) -> FamilyTrajectories:
    """Search the families one after the other, each from the best setting of those before.

    A family whose what-ifs do not fit the graph is skipped with the reason. Raises `GraphError` if the graph itself
    cannot be replayed.
    """
    trajectories: list[Trajectory] = []
    strategies: list[Strategy] = []
    applied: tuple[str, ...] = ()
    settings: dict[str, Scalar] = {}
    for name in families.names:
        current = registry.apply(graph, [registry.read(text) for text in applied])
        baseline = replay(current)
        try:
            found = _searched(current, name, families, inputs, applied)
        except GraphError as error:
            found = skipped(name, baseline, error)
        trajectories.append(found)
        if found.best is None:
            continue
        strategies = [_together(one, settings) for one in found.strategies] + strategies
        applied = found.best.what_ifs
        settings |= found.best.settings or {}
    return FamilyTrajectories(tuple(trajectories), tuple(strategies))


def _searched(graph: Graph, name: str, families: Families, inputs: SearchInputs, applied: Sequence[str]) -> Trajectory:
    if name == memory.NAME:
        if inputs.memory is None or inputs.budget_bytes is None:
            return Trajectory(name, 0.0, skipped="the peak memory of the trace, or its budget, is not known")
        return memory.search(graph, inputs.memory, inputs.budget_bytes, before=applied)
    if name == TENSOR_FUSION.name:
        fused = _blocks(graph, applied) if families.from_fusion else ()
        return tensor_fusion.search(graph, before=applied, fused=fused)
    ratios = inputs.fusion_ratios if name == layer_choice.OP_FUSION else inputs.amp_ratios
    return layer_choice.search(graph, name, ratios, before=applied)


def _blocks(graph: Graph, applied: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the layers of the blocks that have been fused."""
    choices = [registry.read(text) for text in applied]
    parts = [part for one in choices if one.what_if is OP_FUSION for part in one.value]
    return [layers for layers, _ in layers_in(graph, OP_FUSION.name, parts)]


def _together(strategy: Strategy, before: Mapping[str, Scalar]) -> Strategy:
    """Return a strategy with the settings of the families before it."""
    return replace(strategy, settings=None if strategy.settings is None else {**before, **strategy.settings})
