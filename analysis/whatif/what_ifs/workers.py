"""More or fewer data-parallel workers, each with the share of the batch that it had.

New ranks repeat the work of the traced ones, so that their durations do not vary independently: with more workers the
slowest of a step is slower in fact. Collectives take as much longer as the calibration of the link says. Ranks of one
machine share its cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_matrix.analysis.whatif.collectives import of_trace, ring, time_s
from keras_matrix.analysis.whatif.graph import Graph, Header, LinkCalibration, Node
from keras_matrix.analysis.whatif.what_ifs.rewriting import renumbered, scaled
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc, setting, whole

NAME = "workers"


def change(graph: Graph, workers: int, predict: Predict | None = None) -> Graph:
    """Return the graph of so many ranks. Raises `WhatIfError` if ranks communicate other than all together."""
    before, missing = graph.header.world_size, graph.header.missing_ranks
    if before == workers:
        return graph
    if before == 1:
        raise WhatIfError(f"{NAME}: {graph.header.source} has one worker and no collectives; trace two workers")
    everyone = set(range(before))
    for node in graph.nodes:
        if node.collective is not None and set(node.collective.ranks) != everyone:
            raise WhatIfError(
                f"{NAME}: {node.name!r} of rank {node.rank} is a collective of ranks {node.collective.ranks} only;"
                " only data-parallel steps can have other workers"
            )
    link = None if workers == 1 and _collectives(graph) else of_trace(graph)
    kept = [_with_ranks(node, workers, link) for node in graph.nodes if node.rank < workers]
    if workers == 1:
        kept = [node for node in kept if node.collective is None]
    first, copies = len(graph.nodes), list[Node]()
    # Without the traces of some ranks the others' collectives are as they were measured, waits included.
    for rank in range(before, 0 if missing else workers):
        numbers = {node.number: first + at for at, node in enumerate(graph.nodes) if node.rank == rank % before}
        copies += [_copied(node, rank, numbers) for node in kept if node.rank == rank % before]
        first += len(graph.nodes)
    present = {node.rank for node in (*kept, *copies)}
    return renumbered(
        graph,
        [*kept, *copies],
        world_size=workers,
        missing_ranks=tuple(sorted(set(range(workers)) - present)),
        machine=_machine(graph.header, workers),
    )


def _collectives(graph: Graph) -> int:
    """Return how many nodes are part of a collective."""
    return sum(node.collective is not None for node in graph.nodes)


def _with_ranks(node: Node, workers: int, link: LinkCalibration | None) -> Node:
    one = node.collective
    if one is None or workers == 1:
        return node
    size = len(one.ranks)
    before, after = ring(one.operation, size)[1], ring(one.operation, workers)[1]
    if link is not None and one.bytes:
        before, after = (time_s(link, one.operation, ranks, one.bytes) for ranks in (size, workers))
    return replace(scaled(node, after / before), collective=replace(one, ranks=tuple(range(workers))))


def _copied(node: Node, rank: int, numbers: Mapping[int, int]) -> Node:
    """Return a node of another rank. What it waits for is that of its own rank."""
    depends, before = (tuple(numbers.get(one, one) for one in found) for found in (node.depends, node.depends_before))
    return replace(node, number=numbers[node.number], rank=rank, depends=depends, depends_before=before)


def _machine(header: Header, workers: int) -> Mapping[str, Any]:
    """Return the machine, on which new ranks have machines of their own if the traced ones have."""
    if not (hosts := header.machine.get("hosts")):
        return header.machine
    alone = len(set(hosts)) == len(hosts)
    more = [max(hosts) + 1 + at if alone else hosts[at % len(hosts)] for at in range(workers - len(hosts))]
    return {**header.machine, "hosts": [*hosts, *more][:workers]}


def settings(graph: Graph, workers: int) -> Realised:
    """Return the settings of a cell of so many workers; its batch keeps each worker's share."""
    found = of_fc(graph, NAME, {"workers": workers})
    batch = setting(graph, "batch_size")
    if found.settings is None or not isinstance(batch, int):
        return found
    whole_batch, rest = divmod(batch * workers, graph.header.world_size)
    if rest:
        return Realised(None, f"{workers} workers cannot keep the share that each of {graph.header.world_size} has")
    return Realised({"workers": workers, "batch_size": whole_batch})


WORKERS = WhatIf(
    NAME, "other data-parallel workers, each with its share of the batch", "N", whole(NAME), change, settings
)
