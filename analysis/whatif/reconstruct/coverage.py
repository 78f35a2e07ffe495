"""Which share of a step operations and waits for known dependencies explain.

A step is followed from its end back to its beginning: from the node that ends it to the one that it waited for last,
and so on. Time of an operation on this path counts as explained; so does waiting for a known dependency, since the path
continues there, and a collective's wait for other ranks. A node's gap is not explained. So operations that run
meanwhile on another lane explain nothing.

What a profiler's file does not say, and whoever has it may know.

What is wrong with files that do not belong to different ranks of one run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypedDict

from keras_matrix.analysis.whatif.graph import Graph, GraphError, LinkCalibration, Node, NodeKind


class Passed(NamedTuple):
    """A node on the path of a step: its operation's time within the step, and the gap before it."""

    node: Node
    worked_ns: int
    gap_ns: int


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The time that a phase takes on the paths of the steps, one value for each: in operations, and in gaps."""

    worked_s: tuple[float, ...]
    gap_s: tuple[float, ...]

    @property
    def time_s(self) -> tuple[float, ...]:
        """Operations and gaps."""
        return tuple(map(sum, zip(self.worked_s, self.gap_s, strict=True)))

    @property
    def share(self) -> float:
        """The share of operations."""
        total = sum(self.time_s)
        return sum(self.worked_s) / total if total else 1.0

    @property
    def errors(self) -> tuple[float, ...]:
        """The relative errors of each step's time as the prediction of the next one's."""
        return tuple((before - after) / after for before, after in pairwise(self.time_s) if after)


@dataclass(frozen=True, slots=True)
class Coverage:
    """`share` is the mean of the steps `by_step`; `phases` are by name, None for what belongs to no phase."""

    by_step: tuple[float, ...]
    phases: Mapping[str | None, PhaseTime]
    paths: tuple[tuple[Passed, ...], ...]

    @property
    def share(self) -> float:
        """The mean over the steps."""
        return fmean(self.by_step)


def of_graph(graph: Graph, rank: int) -> Coverage:
    """Return the coverage of a rank's traced steps. Raises `GraphError` if it has no node."""
    times_ns = [round(time_s * 1e9) for time_s in graph.header.step_times_s]
    return coverage_of(graph.nodes, rank, _last(graph, rank), times_ns, graph.header.parallel_lanes)


def coverage_of(
    nodes: Sequence[Node], rank: int, last_number: int, step_times_ns: Sequence[int], parallel: Collection[str] = ()
) -> Coverage:
    """Return the coverage of one rank's steps, of which the node with the number `last_number` ends each.

    `nodes` are those of all ranks, in the order of their numbers; `parallel` names lanes that run several at a time.
    """
    before_by_node = _predecessors(nodes, rank, parallel)
    paths = tuple(_path(nodes, before_by_node, last_number, step, step_times_ns) for step in range(len(step_times_ns)))
    shares = [
        _share(path, before_by_node, step, time_ns)
        for step, (path, time_ns) in enumerate(zip(paths, step_times_ns, strict=True))
    ]
    worked: dict[str | None, list[float]] = defaultdict(lambda: [0.0] * len(paths))
    gaps: dict[str | None, list[float]] = defaultdict(lambda: [0.0] * len(paths))
    for step, path in enumerate(paths):
        for passed_node in path:
            worked[passed_node.node.phase][step] += passed_node.worked_ns / 1e9
            gaps[passed_node.node.phase][step] += passed_node.gap_ns / 1e9
    phases = {phase: PhaseTime(tuple(worked[phase]), tuple(gaps[phase])) for phase in worked}
    return Coverage(tuple(shares), phases, paths)


def _last(graph: Graph, rank: int) -> int:
    """Return the node that ends a step: the last of the lane that begins it, which waits for no other one."""
    lanes: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.rank == rank:
            lanes[node.lane].append(node)
    last_nodes = [nodes[-1] for nodes in lanes.values() if not nodes[0].depends]
    if not last_nodes:
        raise GraphError(f"{graph.header.source}: has no operation of rank {rank}")
    return max(last_nodes, key=lambda node: _end(node, -1)).number


def _share(path: Sequence[Passed], before_by_node: Mapping[int, Before], step: int, time_ns: int) -> float:
    if time_ns <= 0:
        return 0.0
    unexplained_ns = sum(passed_node.gap_ns for passed_node in path)
    if before_by_node[path[-1].node.number].same:  # it waited for the step before
        begin_ns = path[-1].node.starts_ns[step] - path[-1].gap_ns
        unexplained_ns += abs(time_ns - (_end(path[0].node, step) - begin_ns))
    return max(0.0, 1 - unexplained_ns / time_ns)


class Before(NamedTuple):
    """What a node of a rank waits for within the rank: in its own step, and in the step before."""

    same: tuple[int, ...]
    earlier: tuple[int, ...]


def _predecessors(nodes: Sequence[Node], rank: int, parallel: Collection[str]) -> dict[int, Before]:
    before_by_node: dict[int, Before] = {}
    last_by_lane: dict[str, int] = {}
    firsts: dict[str, int] = {}
    for node in nodes:
        if node.rank == rank:
            same_step, earlier_step = (
                tuple(other for other in others if nodes[other].rank == rank)
                for others in (node.depends, node.depends_before)
            )
            before_by_node[node.number] = Before(
                (*same_step, last_by_lane[node.lane]) if node.lane in last_by_lane else same_step, earlier_step
            )
            if node.lane not in parallel:
                firsts.setdefault(node.lane, node.number)
                last_by_lane[node.lane] = node.number
    for lane, first_number in firsts.items():
        before_by_node[first_number] = before_by_node[first_number]._replace(
            earlier=(*before_by_node[first_number].earlier, last_by_lane[lane])
        )
    return before_by_node


def _path(
    nodes: Sequence[Node],
    before_by_node: Mapping[int, Before],
    last_number: int,
    step: int,
    step_times_ns: Sequence[int],
) -> tuple[Passed, ...]:
    """Return the nodes that a step waited for, the last first."""
    ends = {number: _end(nodes[number], step) for number in before_by_node}
    previous = max(0, step - 1)  # the first step counts as the one before it

    def ended_before(number: int) -> int:
        return _end(nodes[number], previous) - step_times_ns[previous]

    passed_nodes, reached_number, until_ns = [], last_number, ends[last_number]
    while True:
        node = nodes[reached_number]
        start = node.starts_ns[step]
        worked = 0 if node.kind is NodeKind.WAIT else max(0, min(ends[reached_number], until_ns) - start)
        passed_nodes.append(Passed(node, worked, node.gaps_ns[step]))
        waited, earlier_step = before_by_node[reached_number]
        if not waited:
            return tuple(passed_nodes)
        until_ns = start
        # Of equal ends the later node, so that the path moves on within a lane.
        reached_number = waited[0] if len(waited) == 1 else max(waited, key=lambda other: (ends[other], other))
        if any(ended_before(other) > ends[reached_number] for other in earlier_step):
            return tuple(passed_nodes)


def _end(node: Node, step: int) -> int:
    return node.starts_ns[step] + node.durations_ns[step]


class HeaderFacts(TypedDict, total=False):
    """Fields of the graph's header, by their names there; `threads` are those that one operator of a CPU uses.

    `gradient_bytes` are the sizes of the variables' gradients by their layer, in the order of the variables; `level`,
    "operations" or "segments", applies to files of JAX and TensorFlow.
    """

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    link: LinkCalibration | None
    cores: int | None
    threads: int
    gradient_bytes: Mapping[str, int]
    level: str


def same_rank(rank: int, first: Path, second: Path) -> GraphError:
    """Return the error of two files of one rank: which they are, and how to choose between them."""
    return GraphError(
        f"{first} and {second} are both of rank {rank}; name one file for each rank, with only one of these two, in "
        "place of a folder"
    )
