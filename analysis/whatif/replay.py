"""Replays a trace graph: the time of a steady step, its spread, and what the time is spent on.

The step time is the mean over the traced steps, replayed in their order, three times over, each with its own durations:
what varies together in a step stays together, and what one step leaves to the next one, such as a full queue of a
device, does too. The last round counts. As in `Graph.step_time_s`, the first traced step does not count if there are
others. `low_s` to `high_s` is the 10th to the 90th percentile of replays in which each of the three steps has the
durations of a randomly drawn traced step: the spread of single steps, not the uncertainty of their mean.

The error of a replay is only known for steps that it was not made from: `held_out`.

The time in which operations shared cores or the link is first removed from the measured durations (`exclusive`).
A duration measured while others ran contains their share. The simulation shares cores and links itself, so that it must
start from durations of operations that have them to themselves. They follow from the trace, by the same rules as in
`engine`: an operation did work only for its share of each moment in which it ran.

Assumption: the ranks of one machine begin their steps at the same time. Where a node has no `starts_ns`, its duration
is unchanged.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from keras_matrix.analysis.whatif.engine import (
    STEPS,
    Schedule,
    counted_steps,
    durations_of,
    of_step,
    run,
    simulate,
    typical,
)
from keras_matrix.analysis.whatif.graph import Graph, GraphError, Node, NodeKind
from keras_matrix.analysis.whatif.program import Pick, Program, program_of

LOW, HIGH = 0.1, 0.9
APART = 0.02  # times of a step that differ by more are different
# Operations that all replays of one call may simulate, about 10 s. A larger graph has fewer resamples.
MOST_OPERATIONS = 3_000_000
LEAST_REPLAYS = 3
LEAST_HELD_OUT = 3  # predicted steps without the first traced one
GAP, SHARING, UNASSIGNED = "gap", "sharing", "unassigned"
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PathPart:
    """A node on the critical path, within the steady step. Times are on the clock of the schedule.

    Before the node starts the path has its gap, `gap_ns`. `shared_ns` is how much longer it takes because others use
    the same cores or link.
    """

    node: Node
    start_ns: float
    end_ns: float
    gap_ns: float
    shared_ns: float

    @property
    def time_s(self) -> float:
        """The time from its start to its end, in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the critical path that something has: seconds, and the share of the step."""

    name: str
    time_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed steady step.

    `schedule`, `critical_path` and shares are of the traced step nearest to the mean, or of the mean durations, if that
    step takes another time by itself than among the others.

    `exposed_communication_s` is the time in which a rank only communicates or waits for a collective, of the rank that
    has most of it. The shares are of the critical path; `gap` is time between nodes, `sharing` what contention adds.
    """

    step_time_s: float
    low_s: float
    high_s: float
    exposed_communication_s: float
    critical_path: tuple[PathPart, ...]
    by_layer: tuple[Share, ...]
    by_phase: tuple[Share, ...]
    by_kind: tuple[Share, ...]
    schedule: Schedule
    resamples: int


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A traced step (counted from 0) as predicted from the step before. `repeated_s` is that step's own time."""

    step: int
    predicted_s: float
    measured_s: float
    repeated_s: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1

    @property
    def repeated_error(self) -> float:
        """The relative error of taking the step before as the prediction: what steps vary by themselves."""
        return self.repeated_s / self.measured_s - 1


def replay(graph: Graph, *, resamples: int = 200, seed: int = 0) -> Replay:
    """Replay a graph. Raises `GraphError` if a node can never start."""
    graph = exclusive(graph)
    program = program_of(graph)
    most = max(LEAST_REPLAYS, MOST_OPERATIONS // (STEPS * len(graph.nodes)))
    steps = _spaced(counted_steps(graph), most)
    picks = {step: of_step(graph, step) for step in steps}
    in_order = dict(zip(steps, times_in_order(program, list(picks.values())), strict=True))
    mean_ns = fmean(in_order.values())
    pick = picks[min(steps, key=lambda step: (abs(in_order[step] - mean_ns), step))]
    schedule = run(program, [pick] * STEPS)
    if abs(schedule.step_time_ns - mean_ns) > APART * mean_ns:
        pick = typical(program)
        schedule = run(program, [pick] * STEPS)
    times = _resampled(program, picks, min(resamples, most), seed)
    path = critical_path(program, schedule, pick)
    return Replay(
        step_time_s=mean_ns / 1e9,
        low_s=_quantile(times, LOW) / 1e9,
        high_s=_quantile(times, HIGH) / 1e9,
        exposed_communication_s=max(exposed_communication_ns(graph, schedule)) / 1e9,
        critical_path=path,
        by_layer=_shares(path, schedule, lambda node: node.layer or UNASSIGNED),
        by_phase=_shares(path, schedule, lambda node: node.phase or UNASSIGNED),
        by_kind=_shares(path, schedule, lambda node: node.kind),
        schedule=schedule,
        resamples=len(times),
    )


def times_in_order(program: Program, picks: Sequence[Pick]) -> list[float]:
    """Return the time of each step, in ns, if the steps follow one another, over and over."""
    schedule = run(program, [*picks] * STEPS)
    ends = [0.0, *(max(step.ends_ns) for step in schedule.steps)]
    return [after - before for before, after in pairwise(ends[-len(picks) - 1 :])]


def explained(graph: Graph, replayed_s: float) -> float:
    """Return the share of the traced steps that a graph explains: no more than its replayed step agrees with them."""
    measured_s = graph.step_time_s
    agreement = 1 - abs(replayed_s / measured_s - 1) if measured_s else 0.0
    return max(0.0, min(graph.header.coverage, agreement))


def step_time_s(graph: Graph) -> float:
    """Return only the replayed step time, of the means over the steps: what a search compares many graphs by."""
    return simulate(exclusive(graph)).step_time_ns / 1e9


def held_out(graph: Graph) -> tuple[HeldOut, ...]:
    """Predict each traced step from the one before. Raises `GraphError` with fewer than two steps.

    As in a replay, the first traced step, which starts the program and the profiler, predicts nothing if enough remain.
    """
    times = graph.header.step_times_s
    if len(times) < 2:
        raise GraphError(
            f"{graph.header.source}: has {len(times)} step; trace at least two to predict one from another"
        )
    graph = exclusive(graph)
    program = program_of(graph)
    predictions = []
    first_step = 1 if len(times) - 2 >= LEAST_HELD_OUT else 0
    for step in range(first_step, len(times) - 1):
        predicted_s = run(program, [of_step(graph, step)] * STEPS).step_time_ns / 1e9
        predictions.append(HeldOut(step + 1, predicted_s, times[step + 1], times[step]))
    return tuple(predictions)


def critical_path(program: Program, schedule: Schedule, pick: Pick) -> tuple[PathPart, ...]:
    """Return what determined the end of the steady step, first to last, from the end of the step before.

    Each part started when the last of what it waited for had ended: a dependency, the previous node of its lane, the
    slowest rank of its collective, or, in a lane that runs several nodes, the one that made room.
    """
    durations = durations_of(program, pick)
    begin_ns = schedule.begin_ns
    step, node = len(schedule.steps) - 1, max(range(len(durations)), key=schedule.ends_ns.__getitem__)
    path_parts: list[PathPart] = []
    while step >= 0:
        times = schedule.steps[step]
        start, end = times.starts_ns[node], times.ends_ns[node]
        waiting_node = _last_ready(program, times.ready_ns, node)
        previous_node = _binding(program, schedule, step, waiting_node)
        free_ns = begin_ns if previous_node is None else schedule.steps[previous_node[0]].ends_ns[previous_node[1]]
        shared_ns = max(0.0, end - start - durations[node])
        gap = max(0.0, start - max(free_ns, begin_ns)) if start > begin_ns else 0.0
        if end > begin_ns and (end > start or gap):
            share_inside = (end - max(start, begin_ns)) / (end - start) if end > start else 1.0
            path_parts.append(
                PathPart(program.graph.nodes[node], max(start, begin_ns), end, gap, shared_ns * share_inside)
            )
        if previous_node is None or free_ns <= begin_ns:
            break
        step, node = previous_node
    return tuple(reversed(path_parts))


def _last_ready(program: Program, ready: Sequence[float], node: int) -> int:
    """Return the node that a collective waited for; the node itself if it is not one of a collective."""
    number = program.collective_of[node]
    return (
        node
        if number < 0
        else max(program.members[number], key=lambda candidate: (ready[candidate], candidate == node))
    )


def _binding(program: Program, schedule: Schedule, step: int, node: int) -> tuple[int, int] | None:
    """Return the step and number of the node whose end let this one start; None if there is none."""
    latest = schedule.steps[step].ready_ns[node] * (1 + 1e-12)
    candidates = [(step, other) for other in program.before[node]]
    if step:
        candidates += [(step - 1, other) for other in program.before_last[node]]
    if (queue := program.queue_of[node]) >= 0:
        same_queue = [other for other, node_queue in enumerate(program.queue_of) if node_queue == queue]
        candidates += [
            (candidate_step, other)
            for candidate_step in (step, step - 1)
            if candidate_step >= 0
            for other in same_queue
            if (candidate_step, other) < (step, node)
        ]
    ended_candidates = [
        candidate for candidate in candidates if schedule.steps[candidate[0]].ends_ns[candidate[1]] <= latest
    ]
    return max(
        ended_candidates,
        key=lambda candidate: (schedule.steps[candidate[0]].ends_ns[candidate[1]], candidate),
        default=None,
    )


def exposed_communication_ns(graph: Graph, schedule: Schedule) -> list[float]:
    """Return for each rank the time of a steady step in which it only communicates or waits for a collective.

    On a GPU the host's work does not hide communication, only the device's does.
    """
    working = {NodeKind.COMPUTE, NodeKind.INPUT} | ({NodeKind.HOST} if graph.header.device == "cpu" else set())
    busy_by_rank: dict[int, list[tuple[float, float]]] = defaultdict(list)
    links: dict[int, list[tuple[float, float]]] = defaultdict(list)
    period, times = schedule.step_time_ns, schedule.steps[-1]
    for node in graph.nodes:
        start, end = times.ready_ns[node.number], times.ends_ns[node.number]
        if node.kind is NodeKind.COMMUNICATION:
            links[node.rank].append((start, end))
        elif node.kind in working:
            # The same work of the step before and of the next one overlaps with this step's communication too.
            busy_by_rank[node.rank] += [(start + shift, end + shift) for shift in (-period, 0.0, period)]
    return [_only(links[rank], busy_by_rank[rank]) for rank in range(graph.header.world_size)]


def _only(spans: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of `spans` outside the others."""
    changes = [(time, sign, 0) for interval in spans for time, sign in ((interval[0], 1), (interval[1], -1))]
    changes += [(time, 0, sign) for interval in others for time, sign in ((interval[0], 1), (interval[1], -1))]
    total = last_time = 0.0
    inside = hidden = 0
    for time, span, other in sorted(changes):
        if inside and not hidden:
            total += time - last_time
        last_time, inside, hidden = time, inside + span, hidden + other
    return total


def _shares(path: Sequence[PathPart], schedule: Schedule, name: Callable[[Node], str]) -> tuple[Share, ...]:
    """Return the shares of the critical path by a name of its nodes, largest first."""
    times_ns: dict[str, float] = defaultdict(float)
    for path_part in path:
        times_ns[name(path_part.node)] += path_part.end_ns - path_part.start_ns - path_part.shared_ns
        times_ns[SHARING] += path_part.shared_ns
        times_ns[GAP] += path_part.gap_ns
    whole_ns = schedule.step_time_ns or 1.0
    shares = [Share(str(key), value / 1e9, value / whole_ns) for key, value in times_ns.items() if value > 0]
    return tuple(sorted(shares, key=lambda share: (-share.time_s, share.name)))


def _spaced(steps: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the steps, evenly spaced."""
    if len(steps) <= most:
        return list(steps)
    return [steps[index * len(steps) // most] for index in range(most)]


def _resampled(program: Program, picks: dict[int, Pick], count: int, seed: int) -> list[float]:
    """Return the times of last steps of replays whose steps are drawn at random; a draw is replayed once."""
    draws = random.Random(seed)
    steps = list(picks)
    time_by_draw: dict[tuple[int, ...], float] = {}
    times = []
    for _ in range(max(1, count)):
        drawn_steps = tuple(draws.choice(steps) for _ in range(STEPS))
        if drawn_steps not in time_by_draw:
            time_by_draw[drawn_steps] = run(program, [picks[step] for step in drawn_steps]).step_time_ns
        times.append(time_by_draw[drawn_steps])
    return sorted(times)


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def exclusive(graph: Graph) -> Graph:
    """Return the graph with durations of operations that have cores and link to themselves. Raises `GraphError`."""
    if graph.header.exclusive:
        return graph
    program = program_of(graph)
    durations = [list(node.durations_ns) for node in graph.nodes]
    for step in range(max(len(node.durations_ns) for node in graph.nodes)):
        for number, value in _work(program, step).items():
            durations[number][step] = round(value)
        for transfer, value in _transfers(program, step).items():
            for number in program.members[transfer]:
                if step < len(durations[number]):
                    durations[number][step] = round(value)
    nodes = [
        replace(node, durations_ns=tuple(node_durations))
        for node, node_durations in zip(graph.nodes, durations, strict=True)
    ]
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
    work_by_node: dict[int, float] = {}
    for host in {host for host in program.hosts if host >= 0}:
        changes: list[tuple[float, int, int]] = []
        for number, node_host in enumerate(program.hosts):
            if node_host == host and (interval := _measured(program, number, step)):
                changes += [(interval[0], 1, number), (interval[1], -1, number)]
        # At one time ends come first, except those of a node that begins then.
        changes.sort(key=lambda change: (change[0], change[1], change[2]))
        time_before = served = demand = 0.0
        begun: dict[int, float] = {}
        ended_nodes: set[int] = set()
        for time, sign, number in changes:
            served += (time - time_before) * (1.0 if demand <= cores else cores / demand)
            time_before = time
            if sign < 0 and number not in begun:  # a duration of 0
                ended_nodes.add(number)
                work_by_node[number] = 0.0
            elif number not in ended_nodes:
                demand += sign * program.graph.nodes[number].cores
                work_by_node[number] = served - begun.setdefault(number, served)
    return work_by_node


def _transfers(program: Program, step: int) -> dict[int, float]:
    """Return the duration of each collective without others on its links, if collectives may overlap."""
    if not program.links_shared:
        return {}
    intervals: dict[int, Interval] = {}
    totals: dict[int, float] = {}
    for transfer, members in enumerate(program.members):
        measured_intervals = [interval for number in members if (interval := _measured(program, number, step))]
        if len(measured_intervals) == len(members):
            begin, end = min(measured_intervals, key=lambda interval: interval[1] - interval[0])
            totals[transfer] = min(program.latencies_ns[transfer], end - begin)
            intervals[transfer] = begin + totals[transfer], end
    times = sorted({time for interval in intervals.values() for time in interval})
    order = sorted(intervals, key=lambda transfer: intervals[transfer][0], reverse=True)
    running_transfers: list[int] = []
    for begin, end in pairwise(times):
        while order and intervals[order[-1]][0] <= begin:
            running_transfers.append(order.pop())
        running_transfers = [transfer for transfer in running_transfers if intervals[transfer][1] > begin]
        sharing = Counter(rank for transfer in running_transfers for rank in _ranks(program, program.members[transfer]))
        for transfer in running_transfers:
            totals[transfer] += (end - begin) / max(
                sharing[rank] for rank in _ranks(program, program.members[transfer])
            )
    return totals


def _ranks(program: Program, members: Sequence[int]) -> list[int]:
    return [program.graph.nodes[number].rank for number in members]
