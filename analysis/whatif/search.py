"""Searches for faster settings of a traced step, family by family, in replay: fused or bfloat16 layers by probed
ratios, recomputation and accumulation if memory exceeds a budget, buckets of gradients.

Each candidate is replayed together with what was chosen before it. Promise: pure; what was tried, and why a family was
not searched, is in its `Trajectory`.

Of settings whose predicted times differ by less than `EQUALLY_FAST`, the one with fewer collectives is better: such a
difference is smaller than a prediction's error, and a replay does not contain the host's work for each collective.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from keras_matrix.analysis.whatif.collectives import ddp_buckets, of_trace, tf_packs, time_s
from keras_matrix.analysis.whatif.engine import simulate
from keras_matrix.analysis.whatif.graph import Graph, GraphError, NodeKind
from keras_matrix.analysis.whatif.replay import exclusive, replay, step_time_s
from keras_matrix.analysis.whatif.trajectory import (
    BEST,
    EQUALLY_FAST,
    LEAST_GAIN,
    ReplayedTrial,
    Strategy,
    Trajectory,
    TrialCollector,
    critical_nodes,
    skipped,
    strategy_of,
)
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.analysis.whatif.what_ifs.gradients import (
    EACH,
    NAME,
    TENSOR_FUSION,
    Sums,
    corrections,
    sums_of,
    with_groups,
)
from keras_matrix.analysis.whatif.what_ifs.layers import (
    ALL,
    FUSED,
    OP_FUSION,
    REDUCED,
    LayerRatio,
    belongs,
    layers_in,
    segments_of,
)
from keras_matrix.analysis.whatif.what_ifs.what_if import Scalar, WhatIfError
from keras_matrix.records.text import bytes_text

FUSION, AMP = "op_fusion", "amp"
MEMORY = "memory"
# In the order in which they are searched: what fits into memory comes first, and buckets follow the final compute.
FAMILIES = (MEMORY, FUSION, AMP, TENSOR_FUSION.name)
ALL_FAMILIES, FROM_FUSION = "all", "from_opfs2tsfs"
ALIASES = {"xla": FUSION, "precision": AMP}
WHAT_IFS = {FUSION: FUSED, AMP: REDUCED}
PARTS = (2, 4, 8, 16)
MOST_REPLAYS = 200
MOST_BUCKETS = 24  # of the partitions that dynamic programming proposes
MOST_CAPACITIES = 12
Partition = tuple[int, ...]  # the number of gradients of each bucket


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
    """Return the families of a text. Raises `WhatIfError`, which suggests a name that is near.

    A text is names joined by commas: `tensor_fusion`, `op_fusion` (also `xla`), `amp`, `memory`, or `all`; `^memory`
    leaves a family out. `from_opfs2tsfs` also tries buckets that follow the fused blocks (dPRO: tensors of fused
    operations are fused, too).
    """
    chosen_names: set[str] = set()
    excluded_names: set[str] = set()
    is_from_fusion = False
    for part in text.split(","):
        name = part.strip()
        if name == FROM_FUSION:
            is_from_fusion = True
            continue
        (excluded_names if name.startswith("^") else chosen_names).update(_families(name.removeprefix("^")))
    names = tuple(name for name in FAMILIES if name in ((chosen_names or set(FAMILIES)) - excluded_names))
    if not names:
        raise WhatIfError(f"--search: must leave a family, got {text!r}")
    if is_from_fusion and not {FUSION, TENSOR_FUSION.name} <= set(names):
        raise WhatIfError(
            f"--search: {FROM_FUSION} derives buckets from fused blocks; search {FUSION} and "
            f"{TENSOR_FUSION.name} too, got {text!r}"
        )
    return Families(names, is_from_fusion)


def _families(name: str) -> Sequence[str]:
    if name == ALL_FAMILIES:
        return FAMILIES
    family = ALIASES.get(name, name)
    if family not in FAMILIES:
        close_matches = (
            difflib.get_close_matches(name, [*FAMILIES, *ALIASES, ALL_FAMILIES, FROM_FUSION], n=1)
            if len(name) <= 64
            else []
        )
        advice = (
            f"did you mean {close_matches[0]}?"
            if close_matches
            else f"known are {', '.join((*FAMILIES, ALL_FAMILIES, FROM_FUSION))}"
        )
        raise WhatIfError(f"--search: {name!r} is not known; {advice}")
    return (family,)


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
            trajectory = _searched(current, name, families, inputs, applied)
        except GraphError as error:
            trajectory = skipped(name, baseline, error)
        trajectories.append(trajectory)
        if trajectory.best is None:
            continue
        strategies = [_together(strategy, settings) for strategy in trajectory.strategies] + strategies
        applied = trajectory.best.what_ifs
        settings |= trajectory.best.settings or {}
    return FamilyTrajectories(tuple(trajectories), tuple(strategies))


def _searched(graph: Graph, name: str, families: Families, inputs: SearchInputs, applied: Sequence[str]) -> Trajectory:
    if name == MEMORY:
        if inputs.memory is None or inputs.budget_bytes is None:
            return Trajectory(name, 0.0, skipped="the peak memory of the trace, or its budget, is not known")
        return search_memory(graph, inputs.memory, inputs.budget_bytes, before=applied)
    if name == TENSOR_FUSION.name:
        fused = _blocks(graph, applied) if families.from_fusion else ()
        return search_fusion(graph, before=applied, fused=fused)
    ratios = inputs.fusion_ratios if name == FUSION else inputs.amp_ratios
    return search_layers(graph, name, ratios, before=applied)


def _blocks(graph: Graph, applied: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the layers of the blocks that have been fused."""
    choices = [registry.read(text) for text in applied]
    layer_ratios = [layer_ratio for choice in choices if choice.what_if is OP_FUSION for layer_ratio in choice.value]
    return [layers for layers, _ in layers_in(graph, OP_FUSION.name, layer_ratios)]


def _together(strategy: Strategy, settings_before: Mapping[str, Scalar]) -> Strategy:
    """Return a strategy with the settings of the families before it."""
    return replace(strategy, settings=None if strategy.settings is None else {**settings_before, **strategy.settings})


def search_layers(graph: Graph, family: str, ratios: Mapping[str, float], *, before: Sequence[str] = ()) -> Trajectory:
    """Return the best choice of layers. `family` is `OP_FUSION` or `AMP`, `ratios` are by the text of the layers.

    A ratio is the time of the layers with the change by that without it. `before` are what-ifs that made the graph.
    Raises `GraphError` for layers that the graph does not have.

    Each candidate on the critical path is replayed alone. Then they are added, best first, as long as each makes the
    step faster and shares no layer with one chosen before. Gains of one lane add up, and a gain that ends behind a
    collective is lost: replay sees both, a sum of probed gains would not.
    """
    graph = exclusive(graph)
    baseline = replay(graph)
    if not ratios:
        return skipped(family, baseline, "no gain has been probed")
    name = WHAT_IFS[family]
    layers_and_ratios = layers_in(graph, name, [LayerRatio(text, ratio) for text, ratio in ratios.items()])
    layers = {text: frozenset(own_layers) for text, (own_layers, _) in zip(ratios, layers_and_ratios, strict=True)}
    critical = critical_nodes(baseline)
    candidates = [text for text, own_layers in layers.items() if any(belongs(node, own_layers) for node in critical)]
    if not candidates:
        return skipped(family, baseline, "no operation of a layer with a probed gain is on the critical path")
    trials = TrialCollector(graph, tuple(before))
    time_by_text = {text: trials.replayed([f"{name}={text}:{ratios[text]:g}"]) for text in candidates}
    chosen_texts: list[str] = []
    lowest = step_time_s(graph)
    for text in sorted(candidates, key=lambda part_text: (time_by_text[part_text], part_text)):
        if any(layers[text] & layers[other] for other in chosen_texts):
            continue
        parts_text = ",".join(f"{part_text}:{ratios[part_text]:g}" for part_text in (*chosen_texts, text))
        time = trials.replayed([f"{name}={parts_text}"]) if chosen_texts else time_by_text[text]
        if time < lowest * (1 - LEAST_GAIN):
            chosen_texts.append(text)
            lowest = time
    return trials.finished(family, baseline, _ranked(trials.found))


def _ranked(trials: Sequence[ReplayedTrial]) -> list[ReplayedTrial]:
    """Return the trials, fastest first; of equal ones the one with fewer layers, which was tried first."""
    return sorted(trials, key=lambda trial: trial.step_time_s)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of one worker: the measured peak, and the bytes that each layer retains for its backward pass.

    The peak is what does not depend on the batch, such as weights, gradients and the optimizer's state, plus the
    retained inputs of the layers. Gradient accumulation divides the latter by the number of parts. With recomputation
    one input is retained for each segment, and all inputs of one segment at a time. Fragmentation and temporary buffers
    are ignored; verification measures the peak.
    """

    peak_bytes: int
    retained_bytes: Mapping[str, int]

    def predicted_bytes(self, segments: Sequence[Sequence[str]] | None = None, part_count: int = 1) -> int:
        """Return the predicted peak with recomputed segments of layers, and the batch in parts."""
        retained = sum(self.retained_bytes.values())
        fixed = max(0, self.peak_bytes - retained)
        if segments is not None:
            recomputed_layers = {layer for segment in segments for layer in segment}
            outside_bytes = sum(size for layer, size in self.retained_bytes.items() if layer not in recomputed_layers)
            inputs = sum(self.retained_bytes.get(segment[0], 0) for segment in segments)
            largest_bytes = max(sum(self.retained_bytes.get(layer, 0) for layer in segment[1:]) for segment in segments)
            retained = outside_bytes + inputs + largest_bytes
        return fixed + retained // part_count


def search_memory(
    graph: Graph, worker_memory: WorkerMemory, budget_bytes: int, *, before: Sequence[str] = ()
) -> Trajectory:
    """Return the fastest settings whose predicted peak is within the budget, or why there are none.

    Recomputation and gradient accumulation are searched only if the measured peak exceeds the budget.
    """
    graph = exclusive(graph)
    baseline, budget_text = replay(graph), bytes_text(budget_bytes)
    if worker_memory.peak_bytes <= budget_bytes:
        peak_text = bytes_text(worker_memory.peak_bytes)
        return skipped(MEMORY, baseline, f"the peak of {peak_text} is within the budget of {budget_text}")
    trials = TrialCollector(graph, tuple(before))
    least = worker_memory.peak_bytes
    for texts, peak_bytes in _candidates(graph, worker_memory):
        least = min(least, peak_bytes)
        if peak_bytes <= budget_bytes:
            try:
                trials.replayed(texts)
            except GraphError as error:
                return skipped(MEMORY, baseline, error)
    if not trials.found:
        least_text = bytes_text(least)
        return skipped(
            MEMORY, baseline, f"no setting fits: the least predicted peak is {least_text}, above {budget_text}"
        )
    ranked = sorted(trials.found, key=lambda candidate: candidate.step_time_s)[:BEST]
    strategies = (strategy_of(graph, trial.what_ifs, before) for trial in ranked)
    return Trajectory(
        MEMORY,
        baseline.step_time_s,
        tuple(trials.found),
        tuple(sorted(strategies, key=lambda candidate: candidate.step_time_s)),
        before=tuple(before),
        screened_s=step_time_s(graph),
    )


def _candidates(graph: Graph, worker_memory: WorkerMemory) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield what-ifs and the peak that is predicted with them."""
    segments = segments_of(graph, (ALL,))
    accumulated = [
        (f"gradient_accumulation={part_count}", part_count) for part_count in PARTS if _divides(graph, part_count)
    ]
    yield ("recomputation=all",), worker_memory.predicted_bytes(segments)
    for text, part_count in accumulated:
        yield (text,), worker_memory.predicted_bytes(part_count=part_count)
    for text, part_count in accumulated:
        yield ("recomputation=all", text), worker_memory.predicted_bytes(segments, part_count)


def _divides(graph: Graph, part_count: int) -> bool:
    batch = graph.header.settings.get("batch_size")
    return not isinstance(batch, int) or batch % (part_count * graph.header.world_size) == 0


def search_fusion(
    graph: Graph,
    *,
    before: Sequence[str] = (),
    fused: Sequence[Sequence[str]] = (),
    most_replays: int = MOST_REPLAYS,
) -> Trajectory:
    """Return the best buckets. Raises `GraphError` if the graph cannot be replayed.

    `before` are what-ifs that made the graph, `fused` are blocks of layers to derive buckets from.

    The buckets are contiguous partitions of the gradients. Torch and JAX can have any: the search begins with
    capacities, with the partitions that would be optimal on a link that only they use (`earliest`), and with those
    derived from fused blocks; then it moves, merges and cuts buckets while that helps. TensorFlow has one size of
    packs: all sizes that make different packs are compared.
    """
    graph = exclusive(graph)
    baseline = replay(graph)
    if not any(node.kind is NodeKind.COMMUNICATION for node in critical_nodes(baseline)):
        return skipped(NAME, baseline, "no communication is on the critical path")
    try:
        sums = sums_of(graph)
    except GraphError as error:
        return skipped(NAME, baseline, error)
    fusion_search = _Search(graph, sums, TrialCollector(graph, tuple(before)), most_replays)
    sizes = [gradient.bytes for gradient in sums.gradients]
    if graph.header.backend == "tensorflow":
        for size, partition in _packs(sizes, most_replays):
            fusion_search.time_of(partition, f"{NAME}={size}b")
    else:
        for partition in fusion_search.proposals(sizes, fused):
            fusion_search.time_of(partition)
        fusion_search.improve()
    return fusion_search.trials.finished(NAME, baseline, fusion_search.ranked(), fusion_search.collectives())


class _Search:
    """Replays partitions of one graph's gradients, each once."""

    def __init__(self, graph: Graph, sums: Sums, trials: TrialCollector, most_replays: int) -> None:
        self.trials, self._most = trials, most_replays
        # With its sums at the end, the other nodes of every replayed graph are these; that takes half the time.
        self._graph = with_groups(graph, sums, sums.groups)
        self._sums = sums_of(self._graph)
        self._times: dict[Partition, float] = {}
        self._texts: dict[Partition, str] = {}

    def ranked(self) -> list[ReplayedTrial]:
        """Return all partitions, best first; of those that are equally fast the ones with fewer collectives."""
        limit = min(self._times.values()) * (1 + EQUALLY_FAST)
        fast = sorted((partition for partition, time in self._times.items() if time <= limit), key=len)
        slow = sorted(
            (partition for partition, time in self._times.items() if time > limit), key=self._times.__getitem__
        )
        return [ReplayedTrial((self._texts[partition],), self._times[partition], False) for partition in (*fast, *slow)]

    def collectives(self) -> dict[tuple[str, ...], int]:
        """Return the number of collectives of each trial, by its what-ifs."""
        return {(text,): len(partition) for partition, text in self._texts.items()}

    def proposals(self, sizes: Sequence[int], fused: Sequence[Sequence[str]]) -> Iterator[Partition]:
        """Yield the partitions with which a search begins."""
        yield tuple(len(group) for group in self._sums.groups)
        yield (len(sizes),)
        if fused:
            yield _of_blocks([gradient.layer for gradient in self._sums.gradients], fused)
        yield from earliest(self._ready(), self._time(sizes), MOST_BUCKETS)
        for number in range(MOST_CAPACITIES):
            cap_mb = sum(sizes) / (1 << 20) / 2**number
            yield tuple(len(group) for group in ddp_buckets(sizes, max(cap_mb, 1e-6)))
        yield (1,) * len(sizes)

    def time_of(self, partition: Partition, text: str | None = None) -> float:
        """Return the replayed step time of a partition; infinite once there were too many replays."""
        if partition not in self._times and len(self._times) < self._most:
            groups, begin = [], 0
            for size in partition:
                groups.append(range(begin, begin + size))
                begin += size
            time = step_time_s(with_groups(self._graph, self._sums, groups))
            self._texts[partition] = text or f"{NAME}={_counts(partition)}"
            self._times[partition] = time
            self.trials.add(self._texts[partition], time)
        return self._times.get(partition, float("inf"))

    def improve(self) -> None:
        """Take the best neighbour of the best partition while that is faster."""
        while len(self._times) < self._most:
            best = min(self._times, key=lambda partition: (self._times[partition], len(partition)))
            time_before = self._times[best]
            for partition in neighbours(best):
                self.time_of(partition)
            if min(self._times.values()) >= time_before * (1 - LEAST_GAIN):
                return

    def _ready(self) -> list[float]:
        """Return when each gradient is complete on all ranks, within the replayed step."""
        schedule = simulate(self._graph)
        ends, begin = schedule.ends_ns, schedule.begin_ns
        return [
            max(ends[number] for numbers in gradient.ready.values() for number in numbers) - begin
            for gradient in self._sums.gradients
        ]

    def _time(self, sizes: Sequence[int]) -> Callable[[int, int], float]:
        """Return how long the sum of successive gradients takes, in nanoseconds."""
        link = of_trace(self._graph)
        factors = corrections(self._graph, self._sums, link)
        factor = sum(factors) / len(factors) * 1e9
        collective = next(iter(self._sums.collectives[0].values())).collective
        ends = [0]
        for size in sizes:
            ends.append(ends[-1] + size)
        rank_count, operation = (len(collective.ranks), collective.operation) if collective else (2, "all_reduce")
        return lambda begin, end: factor * time_s(link, operation, rank_count, ends[end] - ends[begin])


def _packs(sizes: Sequence[int], most: int) -> list[tuple[int, Partition]]:
    """Return sizes of packs that make different packs, the largest first, at most so many; 0 is a single pack."""
    size_by_partition: dict[Partition, int] = {}
    totals = {sum(sizes[begin:end]) for begin in range(len(sizes)) for end in range(begin + 1, len(sizes) + 1)}
    # A pack is closed when it is larger than its limit: just below a sum it takes no more than that.
    for size in (0, *sorted({total - 1 for total in totals if total > 1}, reverse=True)):
        size_by_partition.setdefault(tuple(len(group) for group in tf_packs(sizes, size)), size)
    partitions = list(size_by_partition)
    count = min(len(partitions), most)
    return [
        (size_by_partition[partition], partition)
        for partition in (partitions[index * len(partitions) // count] for index in range(count))
    ]


def _counts(partition: Partition) -> str:
    """Return a partition as the value of the what-if."""
    if len(partition) > 1 and set(partition) == {1}:
        return EACH
    return ",".join(map(str, partition)) + ("," if len(partition) == 1 else "")


def _of_blocks(layers: Sequence[str | None], blocks: Sequence[Sequence[str]]) -> Partition:
    """Return a bucket for the successive gradients of each fused block, and one for each other gradient."""
    block_of = {layer: index for index, block in enumerate(blocks) for layer in block}
    sizes: list[int] = []
    last_block: int | None = None
    for layer in layers:
        block = block_of.get(layer) if layer is not None else None
        if block is not None and block == last_block:
            sizes[-1] += 1
        else:
            sizes.append(1)
        last_block = block
    return tuple(sizes)


def earliest(ready: Sequence[float], time: Callable[[int, int], float], most_buckets: int) -> list[Partition]:
    """Return the partition that ends first for each number of buckets from 1 to `most_buckets`.

    `ready` is when each gradient is complete, `time(i, j)` how long the sum of gradients i to j - 1 takes.

    Found by dynamic programming without replay: a bucket that ends with gradient j starts when j is complete, or when
    the bucket before it has ended. For buckets that follow one another on a link that nothing else uses, the partition
    is optimal: the end of the last bucket is a non-decreasing function of the end of those before. It is a good
    beginning for a search by replay.
    """
    count = len(ready)
    complete = [max(ready[: index + 1]) for index in range(count)]
    took = [[time(begin, end) if begin < end else 0.0 for end in range(count + 1)] for begin in range(count)]
    ends = [0.0 if not index else inf for index in range(count + 1)]
    choices: list[list[int]] = []
    partitions = []
    for buckets in range(1, min(most_buckets, count) + 1):
        following, begin_by_end = [inf] * (count + 1), [0] * (count + 1)
        for end in range(buckets, count + 1):
            available = complete[end - 1]
            for begin in range(buckets - 1, end):
                finish = max(ends[begin], available) + took[begin][end]
                if finish < following[end]:
                    following[end], begin_by_end[end] = finish, begin
        ends = following
        choices.append(begin_by_end)
        partitions.append(_traced(choices, count))
    return partitions


def _traced(choices: Sequence[Sequence[int]], count: int) -> Partition:
    sizes = []
    end = count
    for begin_by_end in reversed(choices):
        sizes.append(end - begin_by_end[end])
        end = begin_by_end[end]
    return tuple(reversed(sizes))


def neighbours(partition: Partition) -> list[Partition]:
    """Return partitions that differ by a moved boundary, a merged pair of buckets or a bucket cut in the middle."""
    changed_partitions: list[Partition] = []
    for index, (left, right) in enumerate(pairwise(partition)):
        for shift in (-1, 1):
            if left + shift > 0 and right - shift > 0:
                changed_partitions.append((*partition[:index], left + shift, right - shift, *partition[index + 2 :]))
        changed_partitions.append((*partition[:index], left + right, *partition[index + 2 :]))
    for index, size in enumerate(partition):
        if size > 1:
            changed_partitions.append((*partition[:index], size // 2, size - size // 2, *partition[index + 1 :]))
    return changed_partitions
