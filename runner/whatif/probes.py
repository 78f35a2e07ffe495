"""Probes how much faster blocks of layers are when each is fused, or computes in bfloat16: once per block, measured.

The traced cell is measured on one worker with its share of the batch, so that no communication hides a gain, as it is
and with each block changed. A block's ratio follows from the difference and from the share of the step that the trace
gives to its layers. A difference that its interval does not separate from zero is no gain.

Source of attributing the whole difference of a step to the changed block: dPRO (Hu et al., MLSys 2022).

The memory that a traced cell used, and how much of it the inputs of its layers are; for the workload `fc` only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.stats.blocks import Estimate, of_logs, paired_logs
from keras_matrix.analysis.whatif.graph import Graph, NodeKind
from keras_matrix.analysis.whatif.replay import exclusive
from keras_matrix.analysis.whatif.search import AMP, FUSION, Families, WorkerMemory
from keras_matrix.analysis.whatif.what_ifs.layers import (
    PRECISION,
    REDUCED,
    as_text,
    belongs,
    changing_work,
    layers_of,
    named,
    parse_ratios,
)
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict
from keras_matrix.records.dtypes import variable_bytes
from keras_matrix.records.fc import spec
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Scalar, Settings
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.whatif.strategy_file import checked_changes, with_changes

MOST_BLOCKS = 4
LEAST_RATIO = 0.02
PARAMETERS = {FUSION: "fuse", AMP: "amp"}


@dataclass(frozen=True, slots=True)
class LayerProbe:
    """A block of layers, the family that changes it, and the changed settings."""

    family: str
    block: str
    settings: Settings

    @property
    def name(self) -> str:
        """Return the name of the probe in displays."""
        return f"{PARAMETERS[self.family]}: {self.block}"


@dataclass(frozen=True, slots=True)
class Probes:
    """The unchanged settings of the probes, the probes, and why families have none, by family."""

    base: Settings
    probes: tuple[LayerProbe, ...]
    without: dict[str, str]


def probes_of(base: Settings, graph: Graph, families: Families) -> Probes:
    """Return the probes that a search of these families needs."""
    probed_families = [family for family in families.names if family in PARAMETERS]
    if base.workload != spec.WORKLOAD:
        reason = f"only the workload fc can change blocks of layers, not {base.workload}"
        return Probes(base, (), dict.fromkeys(probed_families, reason))
    one_worker = _one_worker(base)
    all_probes: list[LayerProbe] = []
    reason_by_family: dict[str, str] = {}
    for family in probed_families:
        probes, reason = _of_family(one_worker, graph, family)
        all_probes += probes
        if reason:
            reason_by_family[family] = reason
    return Probes(one_worker, tuple(all_probes), reason_by_family)


def ratios(
    graph: Graph, probes: Sequence[LayerProbe], base_s: Mapping[int, float], times_s: Mapping[str, Mapping[int, float]]
) -> dict[str, dict[str, float]]:
    """Return the ratio of each block that a probe made faster, by family and block.

    `base_s` are the step times of the unchanged processes by repeat, `times_s` those of each probe by its name.
    """
    ratio_by_block: dict[str, dict[str, float]] = {family: {} for family in PARAMETERS}
    for probe in probes:
        change = of_logs(list(paired_logs(times_s.get(probe.name, {}), base_s).values()))
        share = share_of(graph, probe.block)
        if change is not None and share and _is_faster(change):
            ratio_by_block[probe.family][probe.block] = max(LEAST_RATIO, 1 + (change.centre - 1) / share)
    return ratio_by_block


def model_ratios(graph: Graph, predict: Predict) -> dict[str, float]:
    """Return the ratio in bfloat16 of each block of which a cost model knows an operation."""
    ratio_by_block = {}
    for block in blocks_of(graph, AMP):
        chosen_layers = frozenset(named(graph, block, REDUCED))
        time_before_ns = _time_ns(graph, chosen_layers)
        try:
            changed_graph = PRECISION.apply(graph, parse_ratios(REDUCED, block), predict)
        except ValueError:
            continue
        if time_before_ns:
            ratio_by_block[block] = max(LEAST_RATIO, _time_ns(changed_graph, chosen_layers) / time_before_ns)
    return ratio_by_block


def blocks_of(graph: Graph, family: str) -> list[str]:
    """Return the blocks of successive layers that are probed, as texts; a fused block has at least two layers."""
    layers = layers_of(graph)
    least = 2 if family == FUSION else 1
    block_size = max(least, math.ceil(len(layers) / MOST_BLOCKS))
    groups = [layers[start : start + block_size] for start in range(0, len(layers), block_size)]
    return [as_text(graph, group) for group in groups if len(group) >= least]


def share_of(graph: Graph, block: str) -> float:
    """Return the share of a block's work in a step of one worker: all that is no communication, gaps included."""
    graph = exclusive(graph)
    own_nodes = (node for node in graph.nodes if node.kind not in (NodeKind.COMMUNICATION, NodeKind.WAIT))
    step_ns = sum(node.duration_ns + node.gap_ns for node in own_nodes)
    changing = changing_work(graph, named(graph, block, "probe"))
    return sum(node.duration_ns for node in changing) / step_ns if step_ns else 0.0


def _of_family(base: Settings, graph: Graph, family: str) -> tuple[list[LayerProbe], str]:
    """Return the probes of a family, and why it has none."""
    parameter = PARAMETERS[family]
    if base.params.get(parameter):
        return [], f"the traced cell has {parameter}: {base.params[parameter]} already"
    probes = []
    for block in blocks_of(graph, family):
        try:
            probes.append(LayerProbe(family, block, checked_changes(base, {parameter: block})))
        except UsageError as error:
            return [], str(error)
    return probes, "" if probes else "the trace names no layers"


def _one_worker(base: Settings) -> Settings:
    """Return the settings of one worker with its share of the batch."""
    problem = spec.problem_of(base)
    changes: dict[str, Scalar] = {
        "workers": 1,
        "network": spec.LOCAL,
        "batch_size": max(1, base.batch_size // problem.data_size),
    }
    try:
        return with_changes(base, changes)
    except UsageError:
        return base


def _is_faster(change: Estimate) -> bool:
    return change.high is not None and change.high < 1


def _time_ns(graph: Graph, layers: frozenset[str]) -> float:
    return sum(node.duration_ns for node in exclusive(graph).nodes if belongs(node, layers))


def memory_use(record: Record | None, graph: Graph) -> WorkerMemory | None:
    """Return the peak of a traced cell, and what each layer retains; None if either is not known.

    On a CPU both are of all workers together, on a device of one worker.
    """
    if record is None or record.settings.workload != spec.WORKLOAD:
        return None
    problem, layers = spec.problem_of(record.settings), layers_of(graph)
    on_device = record.settings.device != "cpu"
    peak = record.memory.peak_device_memory_bytes if on_device else record.memory.peak_host_memory_bytes
    if peak is None or len(layers) != len(problem.shapes):
        return None
    row_count = problem.batch_size // problem.data_size if on_device else problem.batch_size
    item = variable_bytes(problem.precision)
    return WorkerMemory(
        peak, {name: row_count * shape[0] * item for name, shape in zip(layers, problem.shapes, strict=True)}
    )
