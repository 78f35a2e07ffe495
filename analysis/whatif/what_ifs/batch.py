"""Another batch size, and gradients that are accumulated over parts of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.what_ifs.rewriting import renumbered, scaled
from keras_matrix.analysis.whatif.what_ifs.what_if import Predict, Realised, WhatIf, WhatIfError, of_fc, setting, whole

BATCH, ACCUMULATION = "batch_size", "gradient_accumulation"
UNSCALED = ("update", "communication")


def change_batch(graph: Graph, batch: int, predict: Predict | None = None) -> Graph:
    """Return the graph of another batch: work of the forward and backward pass and input in proportion.

    A cost model that knows an operation replaces the proportion, which ignores fixed costs. Raises `WhatIfError` if the
    batch of the trace is unknown.
    """
    before = setting(graph, BATCH)
    if not isinstance(before, int) or before < 1:
        raise WhatIfError(
            f"{BATCH}: the batch size of {graph.header.source} is not known, so that it cannot be changed; trace a cell"
            " with: runner trace CELL"
        )
    factor = batch / before
    return graph.with_nodes(_of_batch(graph, node, factor, predict) for node in graph.nodes)


def grows_with_batch(graph: Graph, node: Node) -> bool:
    """Return whether a node's work is in proportion to the batch; what keeps no core of a CPU busy has a fixed time."""
    if node.kind not in (NodeKind.COMPUTE, NodeKind.INPUT) or node.phase in UNSCALED:
        return False
    return node.cores > 0 or graph.header.device != "cpu"


def _of_batch(graph: Graph, node: Node, factor: float, predict: Predict | None) -> Node:
    if not grows_with_batch(graph, node):
        return node
    changed = replace(
        node,
        flops=None if node.flops is None else node.flops * factor,
        bytes=None if node.bytes is None else round(node.bytes * factor),
    )
    if predict is not None and (before := predict(node)) and (after := predict(changed)):
        return scaled(changed, after / before)
    return scaled(changed, factor)


def batch_settings(graph: Graph, batch: int) -> Realised:
    """Return the setting `batch_size`."""
    if not graph.header.settings:
        return Realised(None, "the trace is not of a cell of this project")
    return Realised({BATCH: batch})


def change_accumulation(graph: Graph, parts: int, predict: Predict | None = None) -> Graph:
    """Return the graph with the batch computed in parts, one after the other; only the last part sums gradients.

    Work that grows with the batch is divided among the parts; what has a fixed time is repeated in each.
    """
    before = setting(graph, ACCUMULATION, 1)
    if before != 1:
        raise WhatIfError(f"{ACCUMULATION}: the trace has {before} parts already; trace a step of one part")
    if parts == 1:
        return graph
    nodes: list[Node] = []
    first = len(graph.nodes)
    for rank in range(graph.header.world_size):
        own = [node for node in graph.nodes if node.rank == rank]
        repeated = _repeated(graph, own, parts)
        if not repeated:
            nodes += own
            continue
        begin, ends = min(repeated), _ends(graph, repeated.values())
        after: tuple[int, ...] = ()  # the ends of the part before, on threads
        nodes += [node for node in own if node.number < begin]
        for part in range(parts - 1):
            nodes += _copies(repeated, first, after, is_first=not part)
            after = tuple(first + number for number in ends)
            first += len(graph.nodes)
        last = [repeated.get(node.number, node) for node in own if node.number >= begin]
        nodes += [replace(last[0], depends=(*last[0].depends, *after)), *last[1:]]
    if len(nodes) == len(graph.nodes):
        raise WhatIfError(f"{ACCUMULATION}: no operation of {graph.header.source} is in the forward or backward phase")
    return renumbered(graph, nodes)


def _repeated(graph: Graph, nodes: list[Node], parts: int) -> dict[int, Node]:
    """Return the nodes of a rank that each part repeats, with their share of the work, by number.

    They are the forward and backward pass without communication.
    Between the first and the last of them are also nodes without a phase, but nothing that waits for a collective.
    """
    inside = [node.number for node in nodes if node.phase in ("forward", "backward") and node.collective is None]
    if not inside:
        return {}
    after_sums: set[int] = {node.number for node in nodes if node.collective is not None}
    found = {}
    for node in nodes:
        if after_sums.intersection(node.depends):
            after_sums.add(node.number)
        elif (
            inside[0] <= node.number <= inside[-1]
            and node.collective is None
            and node.phase not in (*UNSCALED, "input")
            and node.kind not in (NodeKind.COMMUNICATION, NodeKind.INPUT)
        ):
            found[node.number] = scaled(node, 1 / parts) if grows_with_batch(graph, node) else node
    return found


def _ends(graph: Graph, nodes: Iterable[Node]) -> list[int]:
    """Return the last node of each thread: the next part starts when all have ended. Streams only have an order."""
    last: dict[str, int] = {}
    for node in nodes:
        if graph.header.device == "cpu" or node.kind is NodeKind.HOST:
            last[node.lane] = node.number
    return list(last.values())


def _copies(repeated: Mapping[int, Node], first: int, after: tuple[int, ...], *, is_first: bool) -> Iterator[Node]:
    """Yield the nodes of a part; they wait for each other, for the part before, or for what precedes the step."""
    begin = min(repeated)
    for number, node in repeated.items():
        depends = tuple(
            first + one if one in repeated else one for one in node.depends if one in repeated or one < begin
        )
        if number == begin:
            depends = (*depends, *after)
        before = node.depends_before if is_first else ()
        yield replace(node, number=first + number, depends=depends, depends_before=before, gradient_of=None)


def accumulation_settings(graph: Graph, parts: int) -> Realised:
    """Return the parameter `gradient_accumulation`, which the batch must divide by."""
    batch = setting(graph, BATCH)
    if isinstance(batch, int) and batch % (parts * graph.header.world_size):
        return Realised(None, f"a batch of {batch} has no {parts} equal parts on {graph.header.world_size} workers")
    return of_fc(graph, ACCUMULATION, {ACCUMULATION: parts})


BATCH_SIZE = WhatIf(BATCH, "another batch size", "N", whole(BATCH), change_batch, batch_settings)
GRADIENT_ACCUMULATION = WhatIf(
    ACCUMULATION,
    "the batch in parts, one after the other; gradients are summed over workers once",
    "PARTS",
    whole(ACCUMULATION),
    change_accumulation,
    accumulation_settings,
)
