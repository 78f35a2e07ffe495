"""The gradients of a data-parallel graph: their bytes, when each is complete on each rank, and the sums over ranks.

A step without overlap of communication, and one without input stalls: what each of them costs or saves.

Which gradients are summed together: other buckets (torch, JAX) or packs (TensorFlow).

Each bucket is summed as soon as its last gradient is complete, by the time of the link's calibration. That time is
corrected by the ratio of measured to calibrated time of the traced collectives, step by step, so that a prediction of
the traced setting is the measured one. What waited for a traced collective waits for all buckets with its gradients.

Not modelled: the host's work for each bucket, which stays as it was traced.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from keras_matrix.analysis.whatif.collectives import (
    MOST_CORRECTION,
    ddp_buckets,
    groups_of,
    of_trace,
    tf_packs,
    time_s,
)
from keras_matrix.analysis.whatif.graph import Collective, Graph, LinkCalibration, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.what_if import (
    Predict,
    Realised,
    WhatIf,
    WhatIfError,
    in_order,
    no_value,
    of_fc,
    renumbered,
    setting,
)
from keras_matrix.records.fc import rules
from keras_matrix.records.text import MIB

OVERLAP, STALLS = "no_overlap", "no_input_stalls"
NAME, EACH = "tensor_fusion", "each"
CAP = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:mb)?", re.ASCII)
BYTES = re.compile(r"([0-9]{1,15})b", re.ASCII)
LINK_LANE = "link"


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient: `ready` has, for each traced rank, the nodes that must have ended for it to be complete."""

    bytes: int
    layer: str | None
    ready: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sums:
    """The gradients in the order of their completion, and the collectives that sum them: a node for each rank.

    `groups` are the positions of the gradients in each traced collective. `is_exact` is False if the trace does not
    say when each gradient was complete: then all of a traced collective count as complete when it could start.
    """

    gradients: tuple[Gradient, ...]
    collectives: tuple[Mapping[int, Node], ...]
    groups: tuple[tuple[int, ...], ...]
    is_exact: bool

    @property
    def nodes(self) -> Iterator[Node]:
        """The nodes of all collectives."""
        return (node for members in self.collectives for node in members.values())


def sums_of(graph: Graph) -> Sums:
    """Return the sums of gradients in a graph. Raises `WhatIfError` if it has none."""
    collectives = _collectives(graph)
    tensors = [(index, tensor) for index, members in enumerate(collectives) for tensor in _tensors(members)]
    ranks = sorted(collectives[0])
    nodes_by_rank = {rank: [node for node in graph.nodes if node.rank == rank and node.gradient_of] for rank in ranks}
    layers = [layer for _, (_, layer) in tensors]
    matched = {rank: numbers for rank in ranks if (numbers := _matched(layers, nodes_by_rank[rank])) is not None}
    order = list(range(len(tensors)))
    if len(matched) == len(ranks):
        order.sort(key=matched[ranks[0]].__getitem__)
    else:
        matched = {}
    gradients = []
    for index in order:
        collective_index, (size, layer) = tensors[index]
        ready = {
            rank: (matched[rank][index],) if matched else collectives[collective_index][rank].depends for rank in ranks
        }
        gradients.append(Gradient(size, layer, ready))
    position = {index: place for place, index in enumerate(order)}
    groups: dict[int, list[int]] = defaultdict(list)
    for index, (collective_index, _) in enumerate(tensors):
        groups[collective_index].append(position[index])
    in_groups = tuple(tuple(sorted(groups[index])) for index in sorted(groups))
    is_exact = bool(matched) or len(tensors) == len(collectives)
    return Sums(tuple(gradients), tuple(collectives), in_groups, is_exact)


def _collectives(graph: Graph) -> list[Mapping[int, Node]]:
    """Return the all-reduces of gradients, in their order: those with known gradients, or else all of any size."""
    nodes_by_collective: dict[tuple[str, int], dict[int, Node]] = defaultdict(dict)
    for node in graph.nodes:
        if (collective := node.collective) is not None and collective.operation == "all_reduce" and collective.bytes:
            nodes_by_collective[collective.group, collective.ordinal][node.rank] = node
    with_tensors = {
        key: members
        for key, members in nodes_by_collective.items()
        if any(collective.tensors for collective in _of(members.values()))
    }
    chosen_collectives = with_tensors or nodes_by_collective
    if not chosen_collectives:
        raise WhatIfError(f"{graph.header.source} has no all-reduce with its bytes; trace two workers")
    if len({group for group, _ in chosen_collectives}) > 1:
        groups_text = ", ".join(sorted({repr(group) for group, _ in chosen_collectives}))
        text = f"{graph.header.source} has all-reduces of several groups: {groups_text}"
        raise WhatIfError(f"{text}; only data-parallel steps can have other sums")
    return [chosen_collectives[key] for key in sorted(chosen_collectives)]


def _of(nodes: Iterable[Node]) -> Iterator[Collective]:
    return (node.collective for node in nodes if node.collective is not None)


def _tensors(members: Mapping[int, Node]) -> list[tuple[int, str | None]]:
    """Return the bytes and the layer of each gradient in a collective; a single one if they are not known."""
    collective = next(_of(members.values()))
    if not collective.tensors:
        return [(collective.bytes, None)]
    layers = (
        collective.tensor_layers
        if len(collective.tensor_layers) == len(collective.tensors)
        else (None,) * len(collective.tensors)
    )
    return list(zip(collective.tensors, layers, strict=True))


def _matched(layers: Sequence[str | None], gradient_nodes: Sequence[Node]) -> list[int] | None:
    """Return the node that completes each gradient: the next one of its layer, or the one at its position.

    A layer with one node for several gradients completes all of them with it. None if the nodes do not fit.
    """
    numbers_by_layer: dict[str | None, list[int]] = defaultdict(list)
    for node in gradient_nodes:
        numbers_by_layer[node.gradient_of].append(node.number)
    if all(layer in numbers_by_layer for layer in layers):
        used_by_layer: dict[str | None, int] = defaultdict(int)
        matched = []
        for layer in layers:
            numbers = numbers_by_layer[layer]
            matched.append(numbers[min(used_by_layer[layer], len(numbers) - 1)])
            used_by_layer[layer] += 1
        return matched
    return [node.number for node in gradient_nodes] if len(gradient_nodes) == len(layers) else None


def without_overlap(graph: Graph, value: None = None, predict: Predict | None = None) -> Graph:
    """Return the graph whose gradients are summed after the backward pass, one sum after the other.

    The workload `fc` sums each gradient by itself then; other graphs keep their buckets.
    """
    sums = sums_of(graph)
    single_groups = [[index] for index in range(len(sums.gradients))]
    groups = single_groups if setting(graph, "workload") == "fc" else [list(group) for group in sums.groups]
    changed_graph = with_groups(graph, sums, groups, overlap=False)
    lanes = {node.lane for node in changed_graph.nodes if node.collective is not None}
    at_a_time = {lane: count for lane, count in changed_graph.header.parallel_lanes.items() if lane not in lanes}
    return changed_graph.with_nodes(changed_graph.nodes, parallel_lanes=at_a_time)


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


@dataclass(frozen=True, slots=True)
class Fusion:
    """Buckets by a capacity in MiB, or numbers of gradients, or bytes of a pack; all None: every gradient alone."""

    cap_mb: float | None = None
    counts: tuple[int, ...] | None = None
    bytes_per_pack: int | None = None


def parse(text: str) -> Fusion:
    """Return the fusion of a text: `8` or `8mb`, `3,5,2` or `12,`, `4000000b`, or `each`. Raises `WhatIfError`."""
    if text == EACH:
        return Fusion()
    if match := BYTES.fullmatch(text):
        return Fusion(bytes_per_pack=int(match[1]))
    if (match := CAP.fullmatch(text)) and float(match[1]) > 0:
        return Fusion(cap_mb=float(match[1]))
    try:
        counts = rules.counts(text.removesuffix(","))
    except ValueError:
        counts = ()
    if not counts:
        raise WhatIfError(
            f"{NAME}: must be a capacity in MiB such as 8, numbers of gradients such as 3,5,2, bytes such as 4000000b,"
            f" or each, got {text!r}"
        )
    return Fusion(counts=counts)


def groups(sums: Sums, fusion: Fusion) -> list[list[int]]:
    """Return the positions of the gradients of each bucket. Raises `WhatIfError` for counts that do not fit."""
    sizes = [gradient.bytes for gradient in sums.gradients]
    if fusion.counts is not None:
        if (total := sum(fusion.counts)) != len(sizes):
            raise WhatIfError(
                f"{NAME}: its numbers add up to {total}, the trace has {len(sizes)} gradients; give numbers that add up"
                f" to {len(sizes)}, or a capacity in MiB such as 8"
            )
        return groups_of(fusion.counts, len(sizes))
    if fusion.cap_mb is not None:
        return ddp_buckets(sizes, fusion.cap_mb)
    if fusion.bytes_per_pack is not None:
        return tf_packs(sizes, fusion.bytes_per_pack)
    return [[index] for index in range(len(sizes))]


def change(graph: Graph, fusion: Fusion, predict: Predict | None = None) -> Graph:
    """Return the graph with other buckets. Raises `GraphError` without sums of gradients."""
    sums = sums_of(graph)
    return with_groups(graph, sums, groups(sums, _of_backend(graph, fusion)))


def _of_backend(graph: Graph, fusion: Fusion) -> Fusion:
    """Return the fusion as the backend can have it: TensorFlow has no capacity but the bytes of a pack."""
    if graph.header.backend == "tensorflow" and fusion.cap_mb is not None:
        return Fusion(bytes_per_pack=int(fusion.cap_mb * MIB))
    return fusion


def with_groups(graph: Graph, sums: Sums, groups: Sequence[Sequence[int]], *, overlap: bool = True) -> Graph:
    """Return the graph with these buckets, each a list of positions of `sums.gradients`.

    Without `overlap` each waits for all gradients.
    """
    link = of_trace(graph)
    correction = corrections(graph, sums, link)
    first_number = len(graph.nodes)
    new_nodes: list[Node] = []
    number_by_position: dict[tuple[int, int], int] = {}
    lane, lanes = _lane(graph, sums)
    last_ordinal = max(node.collective.ordinal for node in graph.nodes if node.collective is not None)
    for rank, pattern in sums.collectives[0].items():
        gaps = _gaps(sums, rank)
        for ordinal, group in enumerate(groups):
            waits = range(len(sums.gradients)) if not overlap else group
            ready = sorted({number for index in waits for number in sums.gradients[index].ready[rank]})
            collective = _collective(pattern, sums, last_ordinal + 1 + ordinal, group)
            nominal_ns = time_s(link, collective.operation, len(collective.ranks), collective.bytes) * 1e9
            node = replace(
                pattern,
                number=first_number + len(new_nodes),
                lane=lane,
                depends=tuple(ready),
                depends_before=(),
                durations_ns=tuple(round(nominal_ns * factor) for factor in correction),
                gaps_ns=gaps,
                starts_ns=(),
                bytes=collective.bytes,
                shape=None,
                collective=collective,
            )
            number_by_position |= {(rank, index): node.number for index in group}
            new_nodes.append(node)
    removed_numbers = {node.number for node in sums.nodes}
    replacements = {
        node.number: tuple(dict.fromkeys(number_by_position[rank, index] for index in sums.groups[collective_index]))
        for collective_index, members in enumerate(sums.collectives)
        for rank, node in members.items()
    }
    kept_nodes = [node for node in graph.nodes if node.number not in removed_numbers]
    ordered = in_order(graph, kept_nodes, new_nodes, replacements)
    return renumbered(graph, ordered, replacements, parallel_lanes=lanes, caveats=_caveats(graph, sums))


def corrections(graph: Graph, sums: Sums, link: LinkCalibration) -> list[float]:
    """Return the measured time of the traced sums by the calibrated one, for each traced step.

    1 for all if ranks are missing, whose waits are in the measured times, or if the link is clearly another one.
    """
    members = [list(members.values()) for members in sums.collectives]
    steps = max(len(node.durations_ns) for node in members[0])
    nominal_ns = 0.0
    for nodes in members:
        if (collective := nodes[0].collective) is not None:
            nominal_ns += time_s(link, collective.operation, len(collective.ranks), collective.bytes) * 1e9
    measured_ns = [
        sum(min(node.durations_ns[step % len(node.durations_ns)] for node in nodes) for nodes in members)
        for step in range(steps)
    ]
    ratios = [value / nominal_ns if nominal_ns else 1.0 for value in measured_ns]
    usual = median(ratios)
    if graph.header.missing_ranks or not 1 / MOST_CORRECTION <= usual <= MOST_CORRECTION:
        return [1.0] * steps
    return ratios


def _collective(pattern: Node, sums: Sums, ordinal: int, group: Sequence[int]) -> Collective:
    gradients = [sums.gradients[index] for index in group]
    layers = tuple(gradient.layer for gradient in gradients if gradient.layer is not None)
    sizes = tuple(gradient.bytes for gradient in gradients)
    old_collective = pattern.collective
    if old_collective is None:
        raise WhatIfError(f"{NAME}: node {pattern.number} ({pattern.name!r}) is not a collective")
    return replace(
        old_collective,
        ordinal=ordinal,
        bytes=sum(sizes),
        tensors=sizes,
        tensor_layers=layers if len(layers) == len(sizes) else (),
    )


def _gaps(sums: Sums, rank: int) -> tuple[int, ...]:
    """Return the median gap before a rank's sums, for each traced step."""
    gap_rows = [members[rank].gaps_ns for members in sums.collectives]
    return tuple(round(median(values)) for values in zip(*gap_rows, strict=False))


def _lane(graph: Graph, sums: Sums) -> tuple[str, dict[str, int]]:
    """Return the lane of the new sums, and how many run at a time in each lane: as many as in the traced lanes."""
    lanes_before = dict(graph.header.parallel_lanes)
    used_lanes = {node.lane for node in sums.collectives[0].values()} | {node.lane for node in sums.nodes}
    if len(used_lanes) == 1:
        return used_lanes.pop(), lanes_before
    per_rank: dict[int, set[str]] = {}
    for node in sums.nodes:
        per_rank.setdefault(node.rank, set()).add(node.lane)
    at_a_time = max(sum(lanes_before.get(lane, 1) for lane in lanes) for lanes in per_rank.values())
    return LINK_LANE, {**lanes_before, LINK_LANE: at_a_time}


def _caveats(graph: Graph, sums: Sums) -> tuple[str, ...]:
    caveats: list[str] = []
    if not sums.is_exact:
        caveats.append(
            f"{NAME}: the trace does not say when each gradient was complete; those of one traced collective count as"
            " complete together"
        )
    return tuple(dict.fromkeys((*graph.header.caveats, *caveats)))


def settings(graph: Graph, fusion: Fusion) -> Realised:
    """Return the parameters of the backend that make these buckets, whose sums overlap with the backward pass."""
    grouping = _grouping(graph, fusion)
    if grouping.settings is None or setting(graph, "overlap") != "off":
        return grouping
    return replace(grouping, settings={**grouping.settings, "overlap": rules.DEFAULTS["overlap"]})


def _grouping(graph: Graph, fusion: Fusion) -> Realised:
    backend, fusion = graph.header.backend, _of_backend(graph, fusion)
    if backend == "tensorflow":
        if fusion.bytes_per_pack is None:
            return Realised(None, "TensorFlow's packs have one size: give bytes, such as 4000000b")
        return of_fc(graph, "bytes_per_pack", {"bytes_per_pack": fusion.bytes_per_pack})
    if backend == "torch" and fusion.cap_mb is not None:
        return of_fc(graph, "bucket_cap_mb", {"bucket_cap_mb": fusion.cap_mb, "buckets": ""})
    counts_text = ",".join(str(len(group)) for group in groups(sums_of(graph), fusion))
    if backend == "torch":
        return of_fc(graph, "buckets", {"buckets": counts_text, "bucket_cap_mb": 0.0})
    if backend == "jax":
        return of_fc(graph, "buckets", {"buckets": counts_text})
    return Realised(None, f"no setting of {backend} determines which gradients are summed together")


TENSOR_FUSION = WhatIf(
    NAME,
    "other gradients that are summed together",
    "MIB, such as 8, or NUMBERS of gradients, such as 3,5,2, or BYTES, such as 4000000b, or each",
    parse,
    change,
    settings,
)
