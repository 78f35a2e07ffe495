"""The trace graph: the operations of a steady training step of all ranks, and what each waits for.

A graph describes one step. A node is an operation, with its duration in every traced step; a collective has a node per
rank, and these nodes share one `Collective`. Nodes of a lane (a thread, a device's stream) run one at a time, in the
order of their numbers. Collectives that run at the same time on different lanes share the rate of the link.

A wait is not a node: it follows from dependencies. A node's gap, `gaps_ns`, is the time from the end of the last node
that it waits for, the previous one of its lane included, to its start; it is replayed but does not count as explained
(`Header.coverage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean, median
from typing import Any

VERSION = 1


class GraphError(ValueError):
    """A graph that cannot be replayed; the text names the file, if there is one, and the node."""


class NodeKind(StrEnum):
    """What a node does; time of a `WAIT`, such as a wait inside an operation, is never replayed as work."""

    HOST = "host"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    INPUT = "input"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of several ranks: `operation` number `ordinal` of the step in `group`.

    `bytes` is the payload of one rank; `tensors` are the bytes of the gradients (or other arrays) that it sums, in
    their order, empty if they are not known. `tensor_layers` names them, parallel to `tensors`.
    """

    group: str
    ordinal: int
    operation: str  # "all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"
    ranks: tuple[int, ...]
    bytes: int
    tensors: tuple[int, ...] = ()
    tensor_layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of the step. Times are in nanoseconds, one for each traced step, in the order of the steps.

    `starts_ns` are relative to the begin of the step on this rank's clock after alignment. `depends` holds the numbers
    of nodes of the same step that must have ended, besides the previous node of the lane; `depends_before` those of the
    step before. `cores` is how many cores the operation keeps busy: 0 for a transfer or a sleep. `gradient_of` names
    the layer whose gradient is complete when this node ends.
    """

    number: int
    rank: int
    lane: str
    kind: NodeKind
    name: str
    durations_ns: tuple[int, ...]
    gaps_ns: tuple[int, ...]
    starts_ns: tuple[int, ...]
    depends: tuple[int, ...] = ()
    depends_before: tuple[int, ...] = ()
    phase: str | None = None
    layer: str | None = None
    bytes: int | None = None
    flops: float | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    cores: float = 1.0
    gradient_of: str | None = None
    collective: Collective | None = None

    @property
    def duration_ns(self) -> float:
        """The median of the measured durations."""
        return float(median(self.durations_ns)) if self.durations_ns else 0.0

    @property
    def gap_ns(self) -> float:
        """The median of the gaps before the operation."""
        return float(median(self.gaps_ns)) if self.gaps_ns else 0.0


@dataclass(frozen=True, slots=True)
class LinkCalibration:
    """Ring all-reduce over a link: alpha_s + beta_s_per_byte x bytes x 2 (N - 1) / N, for N ranks.

    alpha is for `ranks` ranks and grows with the steps of the ring, 2 (N - 1). `table` holds measured sizes instead,
    (operation, ranks, bytes, seconds), for a library such as NCCL, which changes its algorithm with the size.
    `source` says how and where it was measured.
    """

    alpha_s: float
    beta_s_per_byte: float
    ranks: int
    source: str
    rate_bits_per_s: float | None = None
    table: tuple[tuple[str, int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """What holds for the whole graph. Times of steps are those of the slowest rank, in seconds.

    `coverage` is the share of the step time that operations and waits for known dependencies explain; `settings` are
    the settings of the traced cell, by their names in the matrix.

    `parallel_lanes` names lanes that run several nodes at a time, in the order of their starts, such as a library's
    threads for collectives, and how many. `exclusive`: the durations are those of operations that have the cores and
    the link that they need to themselves (`contention.exclusive`), not those that the trace has measured.
    """

    source: str
    backend: str
    device: str
    world_size: int
    step_times_s: tuple[float, ...]
    coverage: float
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    link: LinkCalibration | None = None
    clock_offsets_ns: tuple[int, ...] = ()
    cores: int | None = None
    missing_ranks: tuple[int, ...] = ()
    caveats: tuple[str, ...] = ()
    level: str = "operations"  # or "segments", where operations overlap inside one program
    parallel_lanes: Mapping[str, int] = field(default_factory=dict)
    exclusive: bool = False
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Graph:
    """A header and the nodes, in the order of their numbers, which are 0, 1, 2, ..."""

    header: Header
    nodes: tuple[Node, ...]

    def with_nodes(self, nodes: Iterable[Node], **header: Any) -> Graph:
        """Return a checked graph of other nodes, whose header differs in the fields named."""
        return checked(Graph(replace(self.header, **header), tuple(nodes)))

    @property
    def step_time_s(self) -> float:
        """The mean of the measured steps without the first one, which starts the program, if there are several."""
        times = self.header.step_times_s
        return fmean(times[1:] if len(times) > 1 else times)


def checked(graph: Graph) -> Graph:
    """Return the graph. Raises `GraphError` on a wrong number, a dependency on a missing or later node, or a cycle."""
    count = len(graph.nodes)
    if not graph.header.step_times_s:
        raise GraphError(f"{graph.header.source}: contains no step")
    if not count:
        raise GraphError(f"{graph.header.source}: contains no operation")
    for position, node in enumerate(graph.nodes):
        name = f"{graph.header.source}: node {node.number} ({node.name!r}, rank {node.rank}, {node.lane})"
        if node.number != position:
            raise GraphError(f"{name}: is at position {position}; nodes are numbered 0, 1, 2, ... in their order")
        if not node.durations_ns:
            raise GraphError(f"{name}: has no duration")
        if any(value < 0 for value in (*node.durations_ns, *node.gaps_ns)):
            raise GraphError(f"{name}: has a negative duration or gap; the clock ran backwards")
        if not 0 <= node.rank < graph.header.world_size:
            raise GraphError(f"{name}: its rank is not in 0 to {graph.header.world_size - 1}")
        for other in (*node.depends, *node.depends_before):
            if not 0 <= other < count:
                raise GraphError(f"{name}: depends on node {other}, which does not exist")
        if node.number in node.depends:
            raise GraphError(f"{name}: depends on itself")
    _check_order(graph)
    return graph


def _check_order(graph: Graph) -> None:
    """Raise `GraphError` if dependencies and the order within lanes form a cycle."""
    following: list[list[int]] = [[] for _ in graph.nodes]
    waiting_counts = [0] * len(graph.nodes)
    last_on_lane: dict[tuple[int, str], int] = {}
    for node in graph.nodes:
        predecessors = set(node.depends)
        lane = (node.rank, node.lane)
        if lane in last_on_lane and node.lane not in graph.header.parallel_lanes:
            predecessors.add(last_on_lane[lane])
        last_on_lane[lane] = node.number
        waiting_counts[node.number] = len(predecessors)
        for other in predecessors:
            following[other].append(node.number)
    ready = [number for number, count in enumerate(waiting_counts) if not count]
    done_count = 0
    while ready:
        done_count += 1
        for number in following[ready.pop()]:
            waiting_counts[number] -= 1
            if not waiting_counts[number]:
                ready.append(number)
    if done_count < len(graph.nodes):
        node = next(node for node in graph.nodes if waiting_counts[node.number])
        raise GraphError(
            f"{graph.header.source}: node {node.number} ({node.name!r}, rank {node.rank}, {node.lane}) is in a cycle:"
            " it depends on nodes that wait for it"
        )
