"""Removes what the profiler added to a traced step, by the step time of the same cell without the profiler.

A profiler costs about the same for each event, on the thread that records it. So every operation of a CPU's threads
becomes shorter by the same time, first its gap and then its duration, until the replay takes the time that was measured
without the profiler. What runs on a device, a link, or a thread of a library is unchanged.

The replayed time of the traced setting is then the measured one by construction, and no prediction; times of changed
settings are predictions. Not known: the cost of events inside of an operation, which differs between operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.replay import step_time_s

# The cost of an operation's events is found to this part of the step time, and is at most so much.
TOLERANCE = 0.002
MOST_COST_NS = 200_000
ON_THREADS = frozenset({NodeKind.HOST, NodeKind.COMPUTE, NodeKind.INPUT})


def without_overhead(graph: Graph, measured_s: float) -> Graph:
    """Return the graph whose replay takes the step time that was measured without the profiler.

    It is unchanged (apart from contention) if it takes no longer already. If the whole cost cannot explain the
    difference, as much is removed as makes the step faster; the caveat says what was removed.
    """
    graph = exclusive(graph)
    if step_time_s(graph) <= measured_s * (1 + TOLERANCE):
        return graph
    low, high = 0, MOST_COST_NS
    least_s = step_time_s(_shortened(graph, high))
    goal_s = max(measured_s, least_s * (1 + TOLERANCE))
    while high - low > 1:
        middle = (low + high) // 2
        time_s = step_time_s(_shortened(graph, middle))
        low, high = (middle, high) if time_s > goal_s else (low, middle)
        if abs(time_s / goal_s - 1) <= TOLERANCE:
            high = middle
            break
    caveat = f"{high / 1000:.1f} us of each operation on a thread were removed as the profiler's cost"
    shortened = _shortened(graph, high)
    return replace(shortened, header=replace(graph.header, caveats=(*graph.header.caveats, caveat)))


def _shortened(graph: Graph, cost_ns: int) -> Graph:
    on_cpu = graph.header.device == "cpu"
    return replace(
        graph, nodes=tuple(_cheaper(node, cost_ns) if _is_recorded(node, on_cpu) else node for node in graph.nodes)
    )


def _is_recorded(node: Node, on_cpu: bool) -> bool:
    """Return whether the profiler's cost is on the thread of a node: of any work on a CPU, else only of the host's."""
    return node.collective is None and (node.kind in ON_THREADS if on_cpu else node.kind is NodeKind.HOST)


def _cheaper(node: Node, cost_ns: int) -> Node:
    gaps = node.gaps_ns or (0,) * len(node.durations_ns)
    pairs = [_cut(gap, duration, cost_ns) for gap, duration in zip(gaps, node.durations_ns, strict=False)]
    return replace(node, gaps_ns=_column(pairs, 0), durations_ns=_column(pairs, 1))


def _cut(gap: int, duration: int, cost_ns: int) -> tuple[int, int]:
    """Return a gap and a duration that together are shorter by a cost, the gap first."""
    from_gap = min(gap, cost_ns)
    return gap - from_gap, max(0, duration - (cost_ns - from_gap))


def _column(pairs: Sequence[tuple[int, int]], at: int) -> tuple[int, ...]:
    return tuple(pair[at] for pair in pairs)
