"""Removes from measured durations the time in which operations shared cores or the link.

A duration measured while others ran contains their share. The simulation shares cores and links itself, so that it must
start from durations of operations that have them to themselves. They follow from the trace, by the same rules as in
`engine`: an operation did work only for its share of each moment in which it ran.

Assumption: the ranks of one machine begin their steps at the same time. Where a node has no `starts_ns`, its duration
is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from keras_matrix.analysis.whatif.graph import Graph
from keras_matrix.analysis.whatif.program import Program, program_of

Interval = tuple[float, float]


def exclusive(graph: Graph) -> Graph:
    """Return the graph with durations of operations that have cores and link to themselves. Raises `GraphError`."""
    if graph.header.exclusive:
        return graph
    program = program_of(graph)
    durations = [list(node.durations_ns) for node in graph.nodes]
    for step in range(max(len(node.durations_ns) for node in graph.nodes)):
        for number, value in _work(program, step).items():
            durations[number][step] = round(value)
        for at, value in _transfers(program, step).items():
            for number in program.members[at]:
                if step < len(durations[number]):
                    durations[number][step] = round(value)
    nodes = [replace(node, durations_ns=tuple(one)) for node, one in zip(graph.nodes, durations, strict=True)]
    return Graph(replace(graph.header, exclusive=True), tuple(nodes))


def _measured(program: Program, number: int, step: int) -> Interval | None:
    """Return when a node ran in a traced step; None if it is not known."""
    node = program.graph.nodes[number]
    if step >= min(len(node.starts_ns), len(node.durations_ns)):
        return None
    return node.starts_ns[step], node.starts_ns[step] + node.durations_ns[step]


def _work(program: Program, step: int) -> dict[int, float]:
    """Return the work of each node that needs cores of a machine that has too few, in ns of an undisturbed node."""
    cores = float(program.graph.header.cores or 0)
    found: dict[int, float] = {}
    for host in {host for host in program.hosts if host >= 0}:
        changes: list[tuple[float, int, int]] = []
        for number, one in enumerate(program.hosts):
            if one == host and (interval := _measured(program, number, step)):
                changes += [(interval[0], 1, number), (interval[1], -1, number)]
        # At one time ends come first, except those of a node that begins then.
        changes.sort(key=lambda change: (change[0], change[1], change[2]))
        at = done = demand = 0.0
        begun: dict[int, float] = {}
        ended: set[int] = set()
        for time, sign, number in changes:
            done += (time - at) * (1.0 if demand <= cores else cores / demand)
            at = time
            if sign < 0 and number not in begun:  # a duration of 0
                ended.add(number)
                found[number] = 0.0
            elif number not in ended:
                demand += sign * program.graph.nodes[number].cores
                found[number] = done - begun.setdefault(number, done)
    return found


def _transfers(program: Program, step: int) -> dict[int, float]:
    """Return the duration of each collective without others on its links, if collectives may overlap."""
    if not program.links_shared:
        return {}
    intervals: dict[int, Interval] = {}
    totals: dict[int, float] = {}
    for at, members in enumerate(program.members):
        known = [one for number in members if (one := _measured(program, number, step))]
        if len(known) == len(members):
            begin, end = min(known, key=lambda one: one[1] - one[0])
            totals[at] = min(program.latencies_ns[at], end - begin)
            intervals[at] = begin + totals[at], end
    times = sorted({time for one in intervals.values() for time in one})
    order = sorted(intervals, key=lambda at: intervals[at][0], reverse=True)
    running: list[int] = []
    for begin, end in pairwise(times):
        while order and intervals[order[-1]][0] <= begin:
            running.append(order.pop())
        running = [at for at in running if intervals[at][1] > begin]
        sharing = Counter(rank for at in running for rank in _ranks(program, program.members[at]))
        for at in running:
            totals[at] += (end - begin) / max(sharing[rank] for rank in _ranks(program, program.members[at]))
    return totals


def _ranks(program: Program, members: Sequence[int]) -> list[int]:
    return [program.graph.nodes[number].rank for number in members]
