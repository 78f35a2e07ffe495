"""Simulates successive steps of a trace graph, the last of which is the steady step, and shows steps as spans.

Rules:
- A node starts when all that it depends on, and the previous node of its lane, have ended, and its gap has passed.
- A collective starts when the nodes of all its ranks could start, and ends for all of them at the same time. It takes
  the shortest of its nodes' durations: that of the rank that came last, which waited for nobody.
- Nodes that need cores share those of their machine as processors do: if they need more than there are, all of them
  slow down by the same factor. Operating systems divide time between threads in this way; operations that queue for a
  core instead would finish one by one, which no trace of a CPU shows.
- Collectives that overlap on a rank share its link in the same way, except for their latency (alpha).
- A `WAIT` takes no time of its own: it ends when what it waits for has ended.

Where nothing can be shared, each start follows from its predecessors alone, and no event queue is needed. Not known:
that a slower core, cache or memory bus slows a neighbour down that needs no more of its cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from keras_matrix.analysis.whatif.graph import Graph, Node, NodeKind
from keras_matrix.analysis.whatif.program import Pick, Program, blocked_error, program_of
from keras_matrix.records.traces.neutral import Phase, Span, Track, TrackKind

STEPS = 3
ALONE, ON_CORES, COLLECTIVE, QUEUED = range(4)
KINDS = {
    NodeKind.HOST: TrackKind.HOST,
    NodeKind.COMPUTE: TrackKind.COMPUTE,
    NodeKind.COMMUNICATION: TrackKind.COMMUNICATION,
    NodeKind.INPUT: TrackKind.INPUT,
}
PHASES = frozenset(Phase)
Interval = tuple[Node, int, int]


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
        shortest = [min(values) for values in zip(*(nodes[member].durations_ns for member in members), strict=False)]
        for member in members:
            durations[member] = _mean(shortest)
    return Pick(durations, [_mean(node.gaps_ns) for node in nodes])


def _mean(values: Sequence[int]) -> float:
    counted_values = values[1:] if len(values) > 1 else values
    return sum(counted_values) / len(counted_values) if counted_values else 0.0


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
    last_ends = [0.0] * count
    step_times = []
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
                    if last_ends[other] > start:  # noqa: PLR1730
                        start = last_ends[other]
                ready[task] = starts[task] = start = start + gaps[task]
                ends[task] = start + durations[task]
                continue
            nodes = members[task - count]
            for node in nodes:
                free_at = max((ends[other] for other in before[node]), default=0.0)
                ready[node] = gaps[node] + max(
                    free_at, max((last_ends[other] for other in before_last[node]), default=0.0)
                )
            begin = max(ready[node] for node in nodes)
            for node in nodes:
                starts[node], ends[node] = begin, begin + durations[node]
        step_times.append(StepTimes(ready, starts, ends))
        last_ends = ends
    return step_times


def _shared(program: Program, picks: Sequence[Pick]) -> list[StepTimes]:
    durations = [value for pick in picks for value in durations_of(program, pick)]
    gaps = [value for pick in picks for value in pick.gaps_ns]
    simulation = Simulation(program, durations, gaps)
    simulation.run()
    count = len(program.before)
    cuts = [slice(start, start + count) for start in range(0, len(durations), count)]
    return [StepTimes(simulation.ready[cut], simulation.starts[cut], simulation.ends[cut]) for cut in cuts]


class Cores:
    """The cores of a machine. All that run have the same speed, so that one clock of work done orders their ends."""

    __slots__ = ("_at", "_cores", "_demand", "_done", "_running", "_speed", "demands", "next_end")

    def __init__(self, cores: float, demands: list[float]) -> None:
        """`demands` is how many cores each instance needs."""
        self.demands, self.next_end = demands, inf
        self._cores, self._demand, self._speed = cores, 0.0, 1.0
        self._at = self._done = 0.0  # the time of the last change, and the work done by then by what has run always
        self._running: list[tuple[float, int]] = []

    def add(self, now: float, instance: int, work: float) -> None:
        """Start an instance."""
        self._done = done_work = self._done + (now - self._at) * self._speed
        running = self._running
        heappush(running, (done_work + work, instance))
        self._change(now, self._demand + self.demands[instance])

    def pop(self, now: float) -> int:
        """End the instance that ends at this time, `next_end`, and return it."""
        self._done, instance = heappop(self._running)
        self._change(now, self._demand - self.demands[instance])
        return instance

    def _change(self, now: float, demand: float) -> None:
        """Set the speed for what runs from now on, and with it the next end."""
        self._at = now
        if running := self._running:
            self._demand = demand
            self._speed = speed = 1.0 if demand <= self._cores else self._cores / demand
            work_left = running[0][0] - self._done
            self.next_end = now + work_left / speed if work_left > 0 else now
        else:
            self._demand, self._speed, self.next_end = 0.0, 1.0, inf  # exactly 0: rounding does not accumulate


class Links:
    """The links of the ranks. A collective is as slow as on the link with the most collectives."""

    __slots__ = ("_at", "_left", "_ranks", "_speeds", "_uniform", "next_end")

    def __init__(self, ranks: list[tuple[int, ...]]) -> None:
        """`ranks` are those of each collective."""
        self.next_end = inf
        self._ranks, self._uniform = ranks, len(set(ranks)) == 1
        self._at = 0.0
        self._left: dict[int, float] = {}
        self._speeds: dict[int, float] = {}

    def add(self, now: float, instance: int, work: float) -> None:
        """Start the transfer of a collective's instance."""
        self._advance(now)
        self._left[instance] = work
        self._plan()

    def pop(self, now: float) -> int:
        """End the instance that ends at this time, `next_end`, and return it."""
        self._advance(now)
        instance = min(self._left, key=lambda instance: (self._left[instance] / self._speeds[instance], instance))
        del self._left[instance]
        self._plan()
        return instance

    def _advance(self, now: float) -> None:
        for instance in self._left:
            self._left[instance] -= (now - self._at) * self._speeds.get(instance, 0.0)
        self._at = now

    def _plan(self) -> None:
        work_left, count = self._left, len(self._ranks)
        if self._uniform:
            self._speeds = dict.fromkeys(work_left, 1 / max(1, len(work_left)))
        else:
            sharing = Counter(rank for instance in work_left for rank in self._ranks[instance % count])
            self._speeds = {
                instance: 1 / max(sharing[rank] for rank in self._ranks[instance % count]) for instance in work_left
            }
        self.next_end = min(
            (self._at + max(0.0, work_left[instance]) / self._speeds[instance] for instance in work_left), default=inf
        )


class Queue:
    """A lane that runs several nodes at a time and starts them in their order."""

    __slots__ = ("free", "released", "waiting")

    def __init__(self, at_a_time: int) -> None:
        """Let `at_a_time` nodes run at the same time."""
        self.free, self.waiting = at_a_time, list[int]()  # instances that have not started, in reverse order
        self.released: set[int] = set()


def _role(program: Program, node: int) -> int:
    if program.queue_of[node] >= 0:
        return QUEUED
    if program.collective_of[node] >= 0:
        return COLLECTIVE
    return ON_CORES if program.hosts[node] >= 0 else ALONE


class Simulation:
    """Runs all steps; then `ready`, `starts` and `ends` have the times of each instance.

    Its event queue has cores and links that several operations share, and lanes that run several at a time.

    A node of step k is the *instance* k x nodes + its number. Most starts follow from the ends of predecessors and are
    computed at once, without an event; only what uses something shared passes through the queue, in the order of time.
    """

    def __init__(self, program: Program, durations: list[float], gaps: list[float]) -> None:
        """Durations and gaps are of each instance."""
        self._program, self._durations, self._gaps = program, durations, gaps
        task_count, node_count, steps = len(durations), len(program.before), len(durations) // len(program.before)
        self.ready, self.starts, self.ends = [0.0] * task_count, [0.0] * task_count, [-1.0] * task_count
        self._latest = [0.0] * task_count
        first_counts = [len(before) for before in program.before]
        later_counts = [count + len(before) for count, before in zip(first_counts, program.before_last, strict=True)]
        self._unmet = first_counts + later_counts * (steps - 1)
        member_count = len(program.members)
        self._missing = [len(collective_nodes) for collective_nodes in program.members] * steps
        self._begins = [0.0] * (member_count * steps)
        # Times with codes: an instance that arrives, total + a collective's, or `_ended` + one that ends in its queue.
        self._events: list[tuple[float, int]] = []
        self._stack: list[tuple[int, float]] = []  # nodes whose end is known, and their end
        cores, demands = float(program.graph.header.cores or 0), [node.cores for node in program.graph.nodes] * steps
        hosts = sorted({host for host in program.hosts if host >= 0})
        self._cores = {host: Cores(cores, demands) for host in hosts}
        ranks = [
            tuple(program.graph.nodes[node].rank for node in collective_nodes) for collective_nodes in program.members
        ]
        self._links = Links(ranks) if program.links_shared else None
        self._queues = [Queue(at_a_time) for at_a_time in program.queues]
        for instance in reversed(range(task_count)):
            if (queue := program.queue_of[instance % node_count]) >= 0:
                self._queues[queue].waiting.append(instance)
        self._nodes, roles = node_count, [_role(program, node) for node in range(node_count)]
        self._roles = roles * steps
        cores_of_step = [
            self._cores[host] if role == ON_CORES else None for role, host in zip(roles, program.hosts, strict=True)
        ]
        self._ended = task_count + len(self._begins)  # codes of events from here on are ends
        self._cores_of = cores_of_step * steps + [None] * (len(self._begins) + task_count)

    def run(self) -> None:
        """Simulate. Raises `GraphError` if an instance can never start."""
        for instance, unmet in enumerate(self._unmet):
            if not unmet:
                self._release(instance)
        self._propagate()
        self._loop()
        for instance, end in enumerate(self.ends):
            if end < 0:
                raise blocked_error(self._program, instance % self._nodes)

    def _loop(self) -> None:
        """Handle events until there are none."""
        events, cores_of, stack = self._events, self._cores_of, self._stack
        ready, starts, durations = self.ready, self.starts, self._durations
        resources: list[Cores | Links] = [*self._cores.values(), *([self._links] if self._links else [])]
        while True:
            now, source = (events[0][0] if events else inf), None
            for resource in resources:
                if resource.next_end < now:
                    now, source = resource.next_end, resource
            if source is not None:
                if source is self._links:
                    self._end(source.pop(now), now)
                else:
                    stack.append((source.pop(now), now))
            elif events:
                code = heappop(events)[1]
                if (cores := cores_of[code]) is not None:
                    ready[code] = starts[code] = now
                    cores.add(now, code, durations[code])
                    continue
                self._arrive(code, now)
            else:
                break
            if stack:
                self._propagate()

    def _arrive(self, code: int, now: float) -> None:
        """Handle an event that does not start work on cores."""
        if code >= self._ended:
            self._stack.append((code - self._ended, now))
        elif code >= len(self._durations):
            self._transfer(code - len(self._durations), now)
        else:
            queue = self._queues[self._program.queue_of[code % self._nodes]]
            queue.released.add(code)
            self._serve(queue, now)

    def _propagate(self) -> None:
        """Follow known ends to all that they release."""
        stack, ends, unmet, latest = self._stack, self.ends, self._unmet, self._latest
        after, queues = self._program.after, self._queues
        node_count, task_count = self._nodes, len(ends)
        while stack:
            instance, end = stack.pop()
            ends[instance] = end
            node = instance % node_count
            base = instance - node
            for offset in after[node]:
                other = base + offset
                if other >= task_count:  # of a step that is not simulated, as all that follow
                    break
                if end > latest[other]:  # noqa: PLR1730 - max() makes the whole simulation 10 % slower
                    latest[other] = end
                unmet[other] -= 1
                if not unmet[other]:
                    self._release(other)
            if queues and (number := self._program.queue_of[node]) >= 0:
                queues[number].free += 1
                self._serve(queues[number], end)

    def _release(self, instance: int) -> None:
        """Handle that all predecessors of an instance have ended."""
        role, ready = self._roles[instance], self._latest[instance]
        if role == QUEUED:
            heappush(self._events, (ready, instance))
            return
        ready += self._gaps[instance]
        if role == COLLECTIVE:
            self._join(instance, ready)
        elif role == ALONE or not self._durations[instance]:
            self.ready[instance] = self.starts[instance] = ready
            self._stack.append((instance, ready + self._durations[instance]))
        else:
            heappush(self._events, (ready, instance))

    def _serve(self, queue: Queue, now: float) -> None:
        """Start what a lane that runs several nodes at a time can start now."""
        node_count = self._nodes
        while queue.free and queue.waiting and queue.waiting[-1] in queue.released:
            instance = queue.waiting.pop()
            queue.released.remove(instance)
            queue.free -= 1
            begin = now + self._gaps[instance]
            if self._program.collective_of[instance % node_count] >= 0:
                self._join(instance, begin)
            else:
                self.ready[instance] = self.starts[instance] = begin
                heappush(self._events, (begin + self._durations[instance], self._ended + instance))

    def _join(self, instance: int, now: float) -> None:
        """Count a rank that is ready for its collective, and start it if all are."""
        self.ready[instance] = now
        step, node = divmod(instance, self._nodes)
        number = self._program.collective_of[node]
        collective = step * len(self._program.members) + number
        self._begins[collective] = begin = max(self._begins[collective], now)
        self._missing[collective] -= 1
        if self._missing[collective]:
            return
        duration = self._durations[instance]
        if self._links is None:
            self._end(collective, begin + duration)
        else:
            latency = min(duration, self._program.latencies_ns[number])
            heappush(self._events, (begin + latency, len(self._durations) + collective))

    def _transfer(self, collective: int, now: float) -> None:
        """Let a collective, whose latency has passed, use the link."""
        step, number = divmod(collective, len(self._program.members))
        node = self._program.members[number][0]
        work = self._durations[step * self._nodes + node] - self._program.latencies_ns[number]
        if work > 0 and self._links is not None:
            self._links.add(now, collective, work)
        else:
            self._end(collective, now)

    def _end(self, collective: int, now: float) -> None:
        """End a collective for all its ranks."""
        step, number = divmod(collective, len(self._program.members))
        for node in self._program.members[number]:
            instance = step * self._nodes + node
            self.starts[instance] = self._begins[collective]
            self._stack.append((instance, now))


def spans(graph: Graph, schedule: Schedule, *, first_worker: int = 0) -> Iterator[Span]:
    """Yield the steady step of a replay, which begins at 0. Rank r is worker `first_worker` + r.

    These spans and `measured_spans` may be written to one file: `first_worker` moves the ranks of one of them to other
    workers of the file. A collective is shown on each rank from the time when that rank is ready for it, as profilers
    show it.
    """
    times, begin = schedule.steps[-1], schedule.begin_ns
    intervals = []
    for node in graph.nodes:
        start, end = (round(value[node.number] - begin) for value in (times.ready_ns, times.ends_ns))
        intervals.append((node, start, end - start))
    for rank in range(graph.header.world_size):
        yield _step(first_worker + rank, 1, 0, round(schedule.step_time_ns))
    yield from _spans(intervals, 1, first_worker)


def measured_spans(graph: Graph, *, first_worker: int = 0) -> Iterator[Span]:
    """Yield the traced steps one after another, as they were measured. Nodes without `starts_ns` are left out."""
    begin = 0
    for step, time_s in enumerate(graph.header.step_times_s):
        intervals = [
            (node, begin + node.starts_ns[step], node.durations_ns[step])
            for node in graph.nodes
            if step < min(len(node.starts_ns), len(node.durations_ns))
        ]
        for rank in range(graph.header.world_size):
            yield _step(first_worker + rank, step + 1, begin, round(time_s * 1e9))
        yield from _spans(intervals, step + 1, first_worker)
        begin += round(time_s * 1e9)


def _step(worker: int, step: int, start_ns: int, duration_ns: int) -> Span:
    return Span(Track(worker, TrackKind.STEPS), f"step {step}", "step", start_ns, duration_ns, step=step)


def _spans(intervals: Iterable[Interval], step: int, first_worker: int) -> Iterator[Span]:
    """Yield a span for each node, on a track of its lane; nodes of a lane that overlap get several tracks."""
    tracks: dict[tuple[int, TrackKind], list[tuple[str, int]]] = defaultdict(list)  # lane and end of each track
    for node, start, duration in sorted(intervals, key=lambda interval: (interval[1], interval[0].number)):
        if (kind := KINDS.get(node.kind)) is None:
            continue
        ends = tracks[node.rank, kind]
        lane_number = next(
            (index for index, (lane, end) in enumerate(ends) if lane == node.lane and end <= start), len(ends)
        )
        ends[lane_number : lane_number + 1] = [(node.lane, start + duration)]
        phase = Phase(node.phase) if node.phase in PHASES else None
        track = Track(first_worker + node.rank, kind, lane_number)
        size = node.collective.bytes if node.collective else node.bytes
        yield Span(track, node.name, node.name, start, duration, phase, node.layer, step, size_bytes=size)
