"""A trace graph as integer lists, prepared once and simulated many times.

A *task* is what the simulation starts as a unit: a node, or all ranks' nodes of one collective. Task `t` < number of
nodes is that node; the collectives follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from keras_matrix.analysis.whatif.collectives import latency_s
from keras_matrix.analysis.whatif.graph import Graph, GraphError, Header, Node, NodeKind


class Pick(NamedTuple):
    """The duration of each node and the gap before it, in the order of the nodes; a value for one step."""

    durations_ns: Sequence[float]
    gaps_ns: Sequence[float]


@dataclass(frozen=True)
class Program:
    """The graph as lists over the nodes; `members` and `latencies_ns` are over the collectives.

    `before` are nodes of the same step that must have ended, the previous one of a serial lane included; `before_last`
    those of the step before. `collective_of` is the number of a node's collective, -1 without one. `hosts` is the
    machine on which a node needs cores, -1 if cores never run out there. `queue_of` numbers lanes that run several
    nodes at a time, `queues` says how many; -1 is a serial lane. `links_shared`: collectives of a rank may overlap.
    """

    graph: Graph
    before: list[tuple[int, ...]]
    before_last: list[tuple[int, ...]]
    collective_of: list[int]
    members: list[tuple[int, ...]]
    latencies_ns: list[float]
    hosts: list[int]
    queue_of: list[int]
    queues: list[int]
    links_shared: bool

    @property
    def is_static(self) -> bool:
        """Whether nothing is shared, so that each start follows from its predecessors' ends alone."""
        return not (self.links_shared or self.queues or any(host >= 0 for host in self.hosts))

    @cached_property
    def after(self) -> list[tuple[int, ...]]:
        """What waits for each node: numbers of nodes, for those of the next step plus the number of nodes, last."""
        after: list[list[int]] = [[] for _ in self.before]
        for node, earlier_nodes in enumerate(self.before):
            for other in earlier_nodes:
                after[other].append(node)
        for node, earlier_nodes in enumerate(self.before_last):
            for other in earlier_nodes:
                after[other].append(node + len(after))
        return [tuple(nodes_after) for nodes_after in after]

    @cached_property
    def order(self) -> list[int]:
        """The tasks in an order in which each follows all that it waits for. Raises `GraphError` for a cycle."""
        count, collective_of = len(self.before), self.collective_of
        task_of = [node if one_of < 0 else count + one_of for node, one_of in enumerate(collective_of)]
        following: list[list[int]] = [[] for _ in range(count + len(self.members))]
        waiting_counts = [0] * len(following)
        for node, predecessors in enumerate(self.before):
            for other in predecessors:
                following[task_of[other]].append(task_of[node])
                waiting_counts[task_of[node]] += 1
        tasks = set(task_of)
        ready = [task for task in sorted(tasks, reverse=True) if not waiting_counts[task]]
        ordered = []
        while ready:
            ordered.append(task := ready.pop())
            for other in following[task]:
                waiting_counts[other] -= 1
                if not waiting_counts[other]:
                    ready.append(other)
        if len(ordered) < len(tasks):
            blocked = min(task for task in tasks if waiting_counts[task])
            raise blocked_error(self, blocked if blocked < count else self.members[blocked - count][0])
        return ordered


def blocked_error(program: Program, number: int) -> GraphError:
    """Return the error for a node that can never start."""
    node = program.graph.nodes[number]
    cause_text = " ranks that start collectives of one lane in different orders, or" if node.collective else ""
    return GraphError(
        f"{program.graph.header.source}: node {number} ({node.name!r}, rank {node.rank}, {node.lane}) can never start:"
        f"{cause_text} a cycle of dependencies"
    )


def program_of(graph: Graph) -> Program:
    """Prepare a checked graph. Raises `GraphError` if a rank of the trace lacks its node of a collective."""
    header, nodes = graph.header, graph.nodes
    before: list[tuple[int, ...]] = [node.depends for node in nodes]
    before_last: list[tuple[int, ...]] = [node.depends_before for node in nodes]
    queue_of = [-1] * len(nodes)
    queues: list[int] = []
    for lane, numbers in _lanes(nodes).items():
        if (at_a_time := header.parallel_lanes.get(lane[1], 1)) > 1:
            for number in numbers:
                queue_of[number] = len(queues)
            queues.append(at_a_time)
            continue
        for previous, number in pairwise(numbers):
            if previous not in before[number]:
                before[number] = (*before[number], previous)
        if numbers[-1] not in before_last[numbers[0]]:
            before_last[numbers[0]] = (*before_last[numbers[0]], numbers[-1])
    collective_of, members = _collectives(graph)
    return Program(
        graph=graph,
        before=before,
        before_last=before_last,
        collective_of=collective_of,
        members=members,
        latencies_ns=[_latency_ns(header, nodes[collective_nodes[0]]) for collective_nodes in members],
        hosts=_hosts(graph),
        queue_of=queue_of,
        queues=queues,
        links_shared=_links_shared(graph, members),
    )


def _lanes(nodes: Sequence[Node]) -> Mapping[tuple[int, str], list[int]]:
    lanes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for node in nodes:
        lanes[node.rank, node.lane].append(node.number)
    return lanes


def _collectives(graph: Graph) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the collective of each node, and the nodes of each collective."""
    numbers: dict[tuple[str, int], int] = {}
    members: list[list[int]] = []
    collective_of = [-1] * len(graph.nodes)
    for node in graph.nodes:
        if (collective := node.collective) is None:
            continue
        index = numbers.setdefault((collective.group, collective.ordinal), len(members))
        if index == len(members):
            members.append([])
        members[index].append(node.number)
        collective_of[node.number] = index
    for (group, ordinal), index in numbers.items():
        nodes = [graph.nodes[number] for number in members[index]]
        present_ranks = [node.rank for node in nodes]
        ranks = {rank for node in nodes if node.collective for rank in node.collective.ranks}
        if missing_ranks := ranks - set(present_ranks) - set(graph.header.missing_ranks):
            raise GraphError(
                f"{graph.header.source}: collective {ordinal} of group {group!r} ({nodes[0].name!r}) has no node of"
                f" rank {min(missing_ranks)}; its trace has fewer collectives than that of rank {present_ranks[0]}"
            )
        if len(set(present_ranks)) < len(present_ranks):
            rank = next(rank for rank in present_ranks if present_ranks.count(rank) > 1)
            raise GraphError(
                f"{graph.header.source}: collective {ordinal} of group {group!r} has two nodes of rank {rank}"
            )
    return collective_of, [tuple(collective_nodes) for collective_nodes in members]


def _latency_ns(header: Header, node: Node) -> float:
    """Return the part of a collective's time in which it does not need the link's rate."""
    collective = node.collective
    return (
        latency_s(header.link, collective.operation, len(collective.ranks)) * 1e9 if collective and header.link else 0.0
    )


def host_of(header: Header, rank: int) -> int:
    """Return the number of a rank's machine: `machine["hosts"]` lists one for each rank; otherwise there is one."""
    hosts = header.machine.get("hosts")
    return int(hosts[rank]) if hosts else 0


def needs_cores(node: Node) -> bool:
    """Return whether a node keeps cores of its machine busy."""
    return node.cores > 0 and node.kind is not NodeKind.WAIT and node.collective is None


def _hosts(graph: Graph) -> list[int]:
    """Return the machine of each node that needs cores, where all lanes together may need more than there are."""
    core_count = graph.header.cores
    if not core_count:
        return [-1] * len(graph.nodes)
    most: dict[tuple[int, int, str], float] = defaultdict(float)
    for node in graph.nodes:
        if needs_cores(node):
            at_a_time = graph.header.parallel_lanes.get(node.lane, 1)
            key = host_of(graph.header, node.rank), node.rank, node.lane
            most[key] = max(most[key], node.cores * at_a_time)
    demand_by_host: dict[int, float] = defaultdict(float)
    for (host, _, _), demand in most.items():
        demand_by_host[host] += demand
    short = {host for host, demand in demand_by_host.items() if demand > core_count}
    hosts = [host_of(graph.header, node.rank) for node in graph.nodes]
    return [host if host in short and needs_cores(node) else -1 for host, node in zip(hosts, graph.nodes, strict=True)]


def _links_shared(graph: Graph, members: Sequence[Sequence[int]]) -> bool:
    """Return whether collectives of a rank may run at the same time: on several lanes, or on one that allows it."""
    lanes: dict[int, set[str]] = defaultdict(set)
    for numbers in members:
        for number in numbers:
            lanes[graph.nodes[number].rank].add(graph.nodes[number].lane)
    return any(
        sum(graph.header.parallel_lanes.get(lane, 1) for lane in host_lanes) > 1 for host_lanes in lanes.values()
    )
