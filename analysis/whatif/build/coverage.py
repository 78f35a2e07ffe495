"""Which share of a step operations and waits for known dependencies explain.

A step is followed from its end back to its beginning: from the node that ends it to the one that it waited for last,
and so on. Time of an operation on this path counts as explained; so does waiting for a known dependency, since the path
continues there, and a collective's wait for other ranks. A node's gap is not explained. So operations that run
meanwhile on another lane explain nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import Node, NodeKind


class Passed(NamedTuple):
    """A node on the path of a step: its operation's time within the step, and the gap before it."""

    node: Node
    worked_ns: int
    gap_ns: int


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The mean time of a step's path in one phase: in operations, and in gaps before them."""

    worked_s: float
    gap_s: float


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


def coverage_of(
    nodes: Sequence[Node], rank: int, last: int, step_times_ns: Sequence[int], parallel: Collection[str] = ()
) -> Coverage:
    """Return the coverage of one rank's steps, of which the node with the number `last` ends each.

    `nodes` are those of all ranks, in the order of their numbers; `parallel` names lanes that run several at a time.
    """
    before = _predecessors(nodes, rank, parallel)
    paths = tuple(tuple(_path(nodes, before, last, step)) for step in range(len(step_times_ns)))
    shares = [_share(path, time_ns) for path, time_ns in zip(paths, step_times_ns, strict=True)]
    worked: dict[str | None, float] = defaultdict(float)
    gaps: dict[str | None, float] = defaultdict(float)
    for path in paths:
        for passed in path:
            worked[passed.node.phase] += passed.worked_ns / 1e9 / len(paths)
            gaps[passed.node.phase] += passed.gap_ns / 1e9 / len(paths)
    return Coverage(tuple(shares), {phase: PhaseTime(worked[phase], gaps[phase]) for phase in worked}, paths)


def _share(path: Sequence[Passed], time_ns: int) -> float:
    return max(0.0, 1 - sum(passed.gap_ns for passed in path) / time_ns) if time_ns > 0 else 0.0


def _predecessors(nodes: Sequence[Node], rank: int, parallel: Collection[str]) -> dict[int, tuple[int, ...]]:
    """Return what each node of a rank waits for within the rank and the step."""
    found: dict[int, tuple[int, ...]] = {}
    reached: dict[str, int] = {}
    for node in nodes:
        if node.rank == rank:
            own = tuple(other for other in node.depends if nodes[other].rank == rank)
            found[node.number] = (*own, reached[node.lane]) if node.lane in reached else own
            if node.lane not in parallel:
                reached[node.lane] = node.number
    return found


def _path(nodes: Sequence[Node], before: Mapping[int, Sequence[int]], last: int, step: int) -> list[Passed]:
    """Return the nodes that a step waited for, the last first."""
    found, reached, until = [], last, _end(nodes[last], step)
    while True:
        node = nodes[reached]
        start, worked = node.starts_ns[step], _end(node, step) - node.starts_ns[step]
        worked = 0 if node.kind is NodeKind.WAIT else max(0, min(worked, until - start))
        found.append(Passed(node, worked, node.gaps_ns[step]))
        if not before[reached]:
            return found
        until = start
        # Of equal ends the later node, so that the path moves on within a lane.
        reached = max(before[reached], key=lambda other: (_end(nodes[other], step), other))


def _end(node: Node, step: int) -> int:
    return node.starts_ns[step] + node.durations_ns[step]
