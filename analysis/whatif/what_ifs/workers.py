"""What-ifs of what a step runs on: more or fewer data-parallel workers, another batch, gradients accumulated over parts
of it, another rate or latency of the link.

Each worker keeps the share of the batch that it had. New ranks repeat the traced ones, so that their durations do not
vary independently: in fact the slowest of more workers is slower. Collectives take as much longer as the calibration of
the link says. Ranks of one machine share its cores.

A module of its own: it changes what a step runs on, `layers` what it computes; `registry` is the table of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.whatif.collectives import of_trace, ring, time_s, with_rate
from keras_matrix.analysis.whatif.graph import Graph, Header, LinkCalibration, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.what_if import (
    Predict,
    Realised,
    WhatIf,
    WhatIfError,
    of_fc,
    renumbered,
    scaled,
    setting,
    whole,
)
from keras_matrix.records.fc.network import UNITS, normal_rate

NAME = "workers"
BATCH, ACCUMULATION = "batch_size", "gradient_accumulation"
UNSCALED = ("update", "communication")
RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:([kmg])?bit)?", re.ASCII)
TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|ms|us)", re.ASCII)
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def change(graph: Graph, workers: int, predict: Predict | None = None) -> Graph:
    """Return the graph of so many ranks. Raises `WhatIfError` if ranks communicate other than all together."""
    workers_before, missing_ranks = graph.header.world_size, graph.header.missing_ranks
    if workers_before == workers:
        return graph
    if workers_before == 1:
        raise WhatIfError(f"{NAME}: {graph.header.source} has one worker and no collectives; trace two workers")
    all_ranks = set(range(workers_before))
    for node in graph.nodes:
        if node.collective is not None and set(node.collective.ranks) != all_ranks:
            raise WhatIfError(
                f"{NAME}: {node.name!r} of rank {node.rank} is a collective of ranks {node.collective.ranks} only;"
                " only data-parallel steps can have other workers"
            )
    link = None if workers == 1 and _collectives(graph) else of_trace(graph)
    kept_nodes = [_with_ranks(node, workers, link) for node in graph.nodes if node.rank < workers]
    if workers == 1:
        kept_nodes = [node for node in kept_nodes if node.collective is None]
    first_number, copies = len(graph.nodes), list[Node]()
    # Without the traces of some ranks the others' collectives are as they were measured, waits included.
    for rank in range(workers_before, 0 if missing_ranks else workers):
        new_numbers = {
            node.number: first_number + index
            for index, node in enumerate(graph.nodes)
            if node.rank == rank % workers_before
        }
        copies += [_copied(node, rank, new_numbers) for node in kept_nodes if node.rank == rank % workers_before]
        first_number += len(graph.nodes)
    present_ranks = {node.rank for node in (*kept_nodes, *copies)}
    return renumbered(
        graph,
        [*kept_nodes, *copies],
        world_size=workers,
        missing_ranks=tuple(sorted(set(range(workers)) - present_ranks)),
        machine=_machine(graph.header, workers),
    )


def _collectives(graph: Graph) -> int:
    """Return how many nodes are part of a collective."""
    return sum(node.collective is not None for node in graph.nodes)


def _with_ranks(node: Node, workers: int, link: LinkCalibration | None) -> Node:
    collective = node.collective
    if collective is None or workers == 1:
        return node
    size = len(collective.ranks)
    before, after = ring(collective.operation, size)[1], ring(collective.operation, workers)[1]
    if link is not None and collective.bytes:
        before, after = (
            time_s(link, collective.operation, rank_count, collective.bytes) for rank_count in (size, workers)
        )
    return replace(scaled(node, after / before), collective=replace(collective, ranks=tuple(range(workers))))


def _copied(node: Node, rank: int, new_numbers: Mapping[int, int]) -> Node:
    """Return a node of another rank. What it waits for is that of its own rank."""
    depends, depends_before = (
        tuple(new_numbers.get(target, target) for target in targets) for targets in (node.depends, node.depends_before)
    )
    return replace(node, number=new_numbers[node.number], rank=rank, depends=depends, depends_before=depends_before)


def _machine(header: Header, workers: int) -> Mapping[str, Any]:
    """Return the machine, on which new ranks have machines of their own if the traced ones have."""
    if not (hosts := header.machine.get("hosts")):
        return header.machine
    one_rank_per_host = len(set(hosts)) == len(hosts)
    new_hosts = [
        max(hosts) + 1 + index if one_rank_per_host else hosts[index % len(hosts)]
        for index in range(workers - len(hosts))
    ]
    return {**header.machine, "hosts": [*hosts, *new_hosts][:workers]}


def settings(graph: Graph, workers: int) -> Realised:
    """Return the settings of a cell of so many workers; its batch keeps each worker's share."""
    realisation = of_fc(graph, NAME, {"workers": workers})
    batch = setting(graph, "batch_size")
    if realisation.settings is None or not isinstance(batch, int):
        return realisation
    whole_batch, remainder = divmod(batch * workers, graph.header.world_size)
    if remainder:
        return Realised(None, f"{workers} workers cannot keep the share that each of {graph.header.world_size} has")
    return Realised({"workers": workers, "batch_size": whole_batch})


WORKERS = WhatIf(
    NAME, "other data-parallel workers, each with its share of the batch", "N", whole(NAME), change, settings
)


def change_batch(graph: Graph, batch: int, predict: Predict | None = None) -> Graph:
    """Return the graph of another batch: work of the forward and backward pass and input in proportion.

    A cost model that knows an operation replaces the proportion, which ignores fixed costs. Raises `WhatIfError` if the
    batch of the trace is unknown.
    """
    batch_before = setting(graph, BATCH)
    if not isinstance(batch_before, int) or batch_before < 1:
        raise WhatIfError(
            f"{BATCH}: the batch size of {graph.header.source} is not known, so that it cannot be changed; trace a cell"
            " with: runner trace CELL"
        )
    factor = batch / batch_before
    return graph.with_nodes(_of_batch(graph, node, factor, predict) for node in graph.nodes)


def grows_with_batch(graph: Graph, node: Node) -> bool:
    """Return whether a node's work is in proportion to the batch; what keeps no core of a CPU busy has a fixed time."""
    if node.kind not in (NodeKind.COMPUTE, NodeKind.INPUT) or node.phase in UNSCALED:
        return False
    return node.cores > 0 or graph.header.device != "cpu"


def _of_batch(graph: Graph, node: Node, factor: float, predict: Predict | None) -> Node:
    if not grows_with_batch(graph, node):
        return node
    changed_node = replace(
        node,
        flops=None if node.flops is None else node.flops * factor,
        bytes=None if node.bytes is None else round(node.bytes * factor),
    )
    if predict is not None and (before := predict(node)) and (after := predict(changed_node)):
        return scaled(changed_node, after / before)
    return scaled(changed_node, factor)


def batch_settings(graph: Graph, batch: int) -> Realised:
    """Return the setting `batch_size`."""
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    return Realised({BATCH: batch})


def change_accumulation(graph: Graph, part_count: int, predict: Predict | None = None) -> Graph:
    """Return the graph with the batch computed in parts, one after the other; only the last part sums gradients.

    Work that grows with the batch is divided among the parts; what has a fixed time is repeated in each.
    """
    parts_before = setting(graph, ACCUMULATION, 1)
    if parts_before != 1:
        raise WhatIfError(f"{ACCUMULATION}: the trace has {parts_before} parts already; trace a step of one part")
    if part_count == 1:
        return graph
    nodes: list[Node] = []
    first_number = len(graph.nodes)
    for rank in range(graph.header.world_size):
        rank_nodes = [node for node in graph.nodes if node.rank == rank]
        repeated = _repeated(graph, rank_nodes, part_count)
        if not repeated:
            nodes += rank_nodes
            continue
        begin, ends = min(repeated), _ends(graph, repeated.values())
        previous_ends: tuple[int, ...] = ()  # the ends of the part before, on threads
        nodes += [node for node in rank_nodes if node.number < begin]
        for part in range(part_count - 1):
            nodes += _copies(repeated, first_number, previous_ends, is_first=not part)
            previous_ends = tuple(first_number + number for number in ends)
            first_number += len(graph.nodes)
        last_nodes = [repeated.get(node.number, node) for node in rank_nodes if node.number >= begin]
        nodes += [replace(last_nodes[0], depends=(*last_nodes[0].depends, *previous_ends)), *last_nodes[1:]]
    if len(nodes) == len(graph.nodes):
        raise WhatIfError(f"{ACCUMULATION}: no operation of {graph.header.source} is in the forward or backward phase")
    return renumbered(graph, nodes)


def _repeated(graph: Graph, nodes: list[Node], part_count: int) -> dict[int, Node]:
    """Return the nodes of a rank that each part repeats, with their share of the work, by number.

    They are the forward and backward pass without communication.
    Between the first and the last of them are also nodes without a phase, but nothing that waits for a collective.
    """
    pass_numbers = [node.number for node in nodes if node.phase in ("forward", "backward") and node.collective is None]
    if not pass_numbers:
        return {}
    after_sums: set[int] = {node.number for node in nodes if node.collective is not None}
    scaled_nodes = {}
    for node in nodes:
        if after_sums.intersection(node.depends):
            after_sums.add(node.number)
        elif (
            pass_numbers[0] <= node.number <= pass_numbers[-1]
            and node.collective is None
            and node.phase not in (*UNSCALED, "input")
            and node.kind not in (NodeKind.COMMUNICATION, NodeKind.INPUT)
        ):
            scaled_nodes[node.number] = scaled(node, 1 / part_count) if grows_with_batch(graph, node) else node
    return scaled_nodes


def _ends(graph: Graph, nodes: Iterable[Node]) -> list[int]:
    """Return the last node of each thread: the next part starts when all have ended. Streams only have an order."""
    last_by_lane: dict[str, int] = {}
    for node in nodes:
        if graph.header.device == "cpu" or node.kind is NodeKind.HOST:
            last_by_lane[node.lane] = node.number
    return list(last_by_lane.values())


def _copies(
    repeated: Mapping[int, Node], first_number: int, previous_ends: tuple[int, ...], *, is_first: bool
) -> Iterator[Node]:
    """Yield the nodes of a part; they wait for each other, for the part before, or for what precedes the step."""
    begin = min(repeated)
    for number, node in repeated.items():
        depends = tuple(
            first_number + target if target in repeated else target
            for target in node.depends
            if target in repeated or target < begin
        )
        if number == begin:
            depends = (*depends, *previous_ends)
        depends_before = node.depends_before if is_first else ()
        yield replace(
            node, number=first_number + number, depends=depends, depends_before=depends_before, gradient_of=None
        )


def accumulation_settings(graph: Graph, part_count: int) -> Realised:
    """Return the parameter `gradient_accumulation`, which the batch must divide by."""
    batch = setting(graph, BATCH)
    if isinstance(batch, int) and batch % (part_count * graph.header.world_size):
        return Realised(
            None, f"a batch of {batch} has no {part_count} equal parts on {graph.header.world_size} workers"
        )
    return of_fc(graph, ACCUMULATION, {ACCUMULATION: part_count})


BATCH_SIZE = WhatIf(BATCH, "another batch size", "N", whole(BATCH), change_batch, batch_settings)
GRADIENT_ACCUMULATION = WhatIf(
    ACCUMULATION,
    "the batch in parts, one after the other; gradients are summed over workers once",
    "PARTS",
    whole(ACCUMULATION),
    change_accumulation,
    accumulation_settings,
)


def parse_rate(text: str) -> float:
    """Return bits per second of a text such as `500mbit`, or of a number."""
    match = RATE.fullmatch(text)
    rate = float(match[1]) * UNITS.get(match[2], 1) if match else 0.0
    if rate <= 0:
        raise WhatIfError(f"bandwidth: must be a rate such as 500mbit, or bits per second, got {text!r}")
    return rate


def parse_latency(text: str) -> float:
    """Return the seconds of a text such as `2ms`."""
    if (match := TIME.fullmatch(text)) is None:
        raise WhatIfError(f"latency: must be a time such as 2ms or 500us, got {text!r}")
    return float(match[1]) * SECONDS[match[2]]


def rate_text(bits_per_s: float) -> str | None:
    """Return a rate as the parameter `network` has it; None if it is not a whole number of kbit/s."""
    kilobits = bits_per_s / 1000
    return normal_rate(f"{round(kilobits)}kbit") if kilobits == round(kilobits) else None


def change_bandwidth(graph: Graph, bits_per_s: float, predict: Predict | None = None) -> Graph:
    """Return the graph with collectives that take as much longer as the calibration of the link says."""
    old_link = of_trace(graph)
    new_link = with_rate(old_link, bits_per_s)

    def changed(node: Node) -> Node:
        collective = node.collective
        if collective is None or len(collective.ranks) < 2:
            return node
        was, is_now = (
            time_s(link, collective.operation, len(collective.ranks), collective.bytes) for link in (old_link, new_link)
        )
        factor = is_now / was if was else 1.0
        return replace(node, durations_ns=tuple(round(value * factor) for value in node.durations_ns))

    return graph.with_nodes((changed(node) for node in graph.nodes), link=new_link)


def change_latency(graph: Graph, latency_s: float, predict: Predict | None = None) -> Graph:
    """Return the graph with collectives that wait this much longer in each step of their ring."""

    def added_s(operation: str, rank_count: int) -> float:
        return latency_s * ring(operation, rank_count)[0]

    def changed(node: Node) -> Node:
        if (collective := node.collective) is None:
            return node
        more_ns = round(added_s(collective.operation, len(collective.ranks)) * 1e9)
        return replace(node, durations_ns=tuple(value + more_ns for value in node.durations_ns))

    old_link = of_trace(graph)
    table = tuple(
        (name, rank_count, size, time + added_s(name, rank_count)) for name, rank_count, size, time in old_link.table
    )
    new_link: LinkCalibration = replace(
        old_link,
        alpha_s=old_link.alpha_s + added_s("all_reduce", old_link.ranks),
        table=table,
        source=f"{old_link.source}, with {latency_s * 1e3:g} ms of latency",
    )
    return graph.with_nodes((changed(node) for node in graph.nodes), link=new_link)


def bandwidth_settings(graph: Graph, bits_per_s: float) -> Realised:
    """Return the network of that rate, which `ci/netns` makes."""
    if (text := rate_text(bits_per_s)) is None:
        return Realised(None, f"the rate of a network must be a whole number of kbit/s, got {bits_per_s:g} bit/s")
    return of_fc(graph, "network", {"network": text})


def latency_settings(graph: Graph, latency_s: float) -> Realised:
    """Return that no setting adds latency."""
    return Realised(None, "predicted only: unverified, since no setting here adds latency to a link")


BANDWIDTH = WhatIf(
    "bandwidth", "another rate of the link", "RATE, such as 500mbit", parse_rate, change_bandwidth, bandwidth_settings
)
LATENCY = WhatIf(
    "latency", "more latency of the link", "TIME, such as 2ms", parse_latency, change_latency, latency_settings
)
