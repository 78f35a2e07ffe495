"""Simulates successive steps of a trace graph; the last one is the steady step.

Rules:
- A node starts when all that it depends on, and the previous node of its lane, have ended, and its gap has passed.
- A collective starts when the nodes of all its ranks could start, and ends for all of them at the same time. It takes
  the shortest of its nodes' durations: that of the rank that came last, which waited for nobody.
- Nodes that need cores share those of their machine as processors do: if they need more than there are, all of them
  slow down by the same factor. Operating systems divide time between threads in this way; operations that queue for a
  core instead would finish one by one, which no trace of a CPU shows.
- Collectives that overlap on a rank share its link in the same way, except for their latency (alpha).
- A `WAIT` takes no time of its own: it ends when what it waits for has ended.

Where nothing can be shared, each start follows from its predecessors alone, and no event queue is needed.
Not known: that a slower core, cache or memory bus slows a neighbour down that needs no more of its cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.program import Pick, Program, program_of
from keras_matrix.analysis.whatif.sharing import Simulation

STEPS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each node of a step could start (`ready_ns`), started and ended.

    The node of a collective is ready before it starts if it waits for other ranks.
    """

    ready_ns: Sequence[float]
    starts_ns: Sequence[float]
    ends_ns: Sequence[float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Simulated steps, on one clock. `step_time_ns` is the time between the ends of the last two steps."""

    steps: tuple[StepTimes, ...]
    step_time_ns: float

    @property
    def starts_ns(self) -> Sequence[float]:
        """The start of each node in the steady step."""
        return self.steps[-1].starts_ns

    @property
    def ends_ns(self) -> Sequence[float]:
        """The end of each node in the steady step."""
        return self.steps[-1].ends_ns

    @property
    def begin_ns(self) -> float:
        """The end of the step before the steady one; 0 with a single step."""
        return max(self.ends_ns) - self.step_time_ns


def simulate(graph: Graph, *, steps: int = STEPS, pick: Pick | None = None) -> Schedule:
    """Simulate `steps` equal steps with the durations of `pick`, by default the means of those that were measured.

    Durations are those of operations that have cores and link to themselves. Raises `GraphError` for a graph in which a
    node can never start.
    """
    program = program_of(graph)
    return run(program, [pick or typical(program)] * steps)


def run(program: Program, picks: Sequence[Pick]) -> Schedule:
    """Simulate a step for each of `picks`. Raises `GraphError`."""
    steps = _without_sharing(program, picks) if program.is_static else _shared(program, picks)
    ends = [0.0, *(max(step.ends_ns) for step in steps)]
    return Schedule(tuple(steps), ends[-1] - ends[-2])


def counted_steps(graph: Graph) -> range:
    """Return the traced steps that count: all but the first, which starts the program, if there are several."""
    count = max(len(node.durations_ns) for node in graph.nodes)
    return range(min(1, count - 1), count)


def typical(program: Program) -> Pick:
    """Return the means over the traced steps that count.

    Not medians: an operation that a few steps delay is somewhere in each step, so that the sum of many medians is below
    every step. (99 small layers: 164 ms where steps took 206.) Of a collective's nodes the shortest of a step counts.
    """
    nodes = program.graph.nodes
    durations = [0.0 if node.kind is NodeKind.WAIT else _mean(node.durations_ns) for node in nodes]
    for members in program.members:
        shortest = [min(values) for values in zip(*(nodes[one].durations_ns for one in members), strict=False)]
        for one in members:
            durations[one] = _mean(shortest)
    return Pick(durations, [_mean(node.gaps_ns) for node in nodes])


def _mean(values: Sequence[int]) -> float:
    counted = values[1:] if len(values) > 1 else values
    return sum(counted) / len(counted) if counted else 0.0


def of_step(graph: Graph, step: int) -> Pick:
    """Return what was measured in one traced step, counted from 0; a node that has fewer steps repeats them."""

    def value(node: Node, values: Sequence[int]) -> float:
        return float(values[step % len(values)]) if values else 0.0

    durations = [0.0 if node.kind is NodeKind.WAIT else value(node, node.durations_ns) for node in graph.nodes]
    return Pick(durations, [value(node, node.gaps_ns) for node in graph.nodes])


def durations_of(program: Program, pick: Pick) -> list[float]:
    """Return the duration of each node, in which nodes of a collective have the shortest of theirs."""
    durations = list(pick.durations_ns)
    for members in program.members:
        shortest = min(durations[node] for node in members)
        for node in members:
            durations[node] = shortest
    return durations


def _without_sharing(program: Program, picks: Sequence[Pick]) -> list[StepTimes]:
    """Simulate in the order of dependencies. Three times as many operations a second as with an event queue."""
    before, before_last, members = program.before, program.before_last, program.members
    count = len(before)
    last = [0.0] * count
    found = []
    for pick in picks:
        durations, gaps = durations_of(program, pick), pick.gaps_ns
        ready, starts, ends = [0.0] * count, [0.0] * count, [0.0] * count
        for task in program.order:
            if task < count:
                start = 0.0
                for other in before[task]:
                    if ends[other] > start:  # noqa: PLR1730 - max() makes the simulation a third slower
                        start = ends[other]
                for other in before_last[task]:
                    if last[other] > start:  # noqa: PLR1730
                        start = last[other]
                ready[task] = starts[task] = start = start + gaps[task]
                ends[task] = start + durations[task]
                continue
            nodes = members[task - count]
            for node in nodes:
                free = max((ends[other] for other in before[node]), default=0.0)
                ready[node] = gaps[node] + max(free, max((last[other] for other in before_last[node]), default=0.0))
            begin = max(ready[node] for node in nodes)
            for node in nodes:
                starts[node], ends[node] = begin, begin + durations[node]
        found.append(StepTimes(ready, starts, ends))
        last = ends
    return found


def _shared(program: Program, picks: Sequence[Pick]) -> list[StepTimes]:
    durations = [value for pick in picks for value in durations_of(program, pick)]
    gaps = [value for pick in picks for value in pick.gaps_ns]
    simulation = Simulation(program, durations, gaps)
    simulation.run()
    count = len(program.before)
    cuts = [slice(at, at + count) for at in range(0, len(durations), count)]
    return [StepTimes(simulation.ready[cut], simulation.starts[cut], simulation.ends[cut]) for cut in cuts]
