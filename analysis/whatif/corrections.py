"""Corrects a traced graph before it is asked what-ifs: without the profiler's cost, at the speed of the cell's mean
process, with a link fitted to measured steps.

The first two make the replay of the traced setting equal the measurement by construction, so that only changed settings
are predictions; they leave work on devices and links unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from keras_matrix.analysis.whatif.collectives import of_trace
from keras_matrix.analysis.whatif.graph import Graph, GraphError, LinkCalibration, Node, NodeKind
from keras_matrix.analysis.whatif.replay import exclusive, step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry
from keras_matrix.records.text import percent_change

# The cost of an operation's events is found to this part of the step time, and is at most so much.
OVERHEAD_TOLERANCE = 0.002
MOST_COST_NS = 200_000
ON_THREADS = frozenset({NodeKind.HOST, NodeKind.COMPUTE, NodeKind.INPUT})
# The ratio is found to this part of the step time. A larger difference of processes than this ratio has another cause.
MEAN_TOLERANCE = 0.001
MOST_RATIO = 1.25
FACTORS = (4.0, 2.0, 1.4, 1.1, 1.03)
MOST_REPLAYS = 200
MOST_CHANGE = 1000.0


def without_overhead(graph: Graph, measured_s: float) -> Graph:
    """Return the graph whose replay takes the step time that was measured without the profiler.

    It is unchanged (apart from contention) if it takes no longer already. If the whole cost cannot explain the
    difference, as much is removed as makes the step faster; the caveat says what was removed.

    A profiler costs about the same for each event, on the thread that records it. So every operation of a CPU's threads
    becomes shorter by the same time, first its gap and then its duration. What runs on a device, a link, or a thread of
    a library is unchanged. Not known: the cost of events inside of an operation, which differs between operations.
    """
    graph = exclusive(graph)
    if step_time_s(graph) <= measured_s * (1 + OVERHEAD_TOLERANCE):
        return graph
    low, high = 0, MOST_COST_NS
    least_s = step_time_s(_shortened(graph, high))
    goal_s = max(measured_s, least_s * (1 + OVERHEAD_TOLERANCE))
    while high - low > 1:
        middle = (low + high) // 2
        time_s = step_time_s(_shortened(graph, middle))
        low, high = (middle, high) if time_s > goal_s else (low, middle)
        if abs(time_s / goal_s - 1) <= OVERHEAD_TOLERANCE:
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


def _column(pairs: Sequence[tuple[int, int]], index: int) -> tuple[int, ...]:
    return tuple(pair[index] for pair in pairs)


def as_mean_process(graph: Graph, step_times_s: Sequence[float]) -> Graph:
    """Return the graph whose replay takes the mean of the step times of a cell's processes, in seconds.

    It is unchanged (apart from contention) for a single process, for a GPU's, and if no ratio up to `MOST_RATIO`
    reaches the mean; the caveat says by how much computation became longer.

    Processes of one cell differ in speed, by where their memory and threads happened to be placed, so that a prediction
    from one of them has its deviation in every figure. The mean has less of it. What keeps a core busy becomes longer
    or shorter by one ratio, its measured time in all steps; waits, sleeps and transfers, which have other causes, are
    unchanged. A GPU's work does not differ so between processes.
    """
    if len(step_times_s) < 2 or graph.header.device != "cpu":
        return graph
    graph, goal_s = exclusive(graph), fmean(step_times_s)
    low, high = 1 / MOST_RATIO, MOST_RATIO
    if not step_time_s(_scaled(graph, low)) <= goal_s <= step_time_s(_scaled(graph, high)):
        return graph
    middle = 1.0
    while (
        abs((time_s := step_time_s(_scaled(graph, middle))) / goal_s - 1) > MEAN_TOLERANCE
        and high - low > MEAN_TOLERANCE / 10
    ):
        low, high = (middle, high) if time_s < goal_s else (low, middle)
        middle = (low + high) / 2
    if middle == 1.0:
        return graph
    caveat = (
        f"computation was made {percent_change(middle)} longer, for the mean of {len(step_times_s)} "
        "processes of the cell"
    )
    scaled_graph = _scaled(graph, middle)
    return replace(scaled_graph, header=replace(scaled_graph.header, caveats=(*scaled_graph.header.caveats, caveat)))


def _scaled(graph: Graph, ratio: float) -> Graph:
    return graph.with_nodes([_times(node, ratio) if _is_work(node) else node for node in graph.nodes])


def _is_work(node: Node) -> bool:
    return node.collective is None and node.cores > 0


def _times(node: Node, ratio: float) -> Node:
    return replace(node, durations_ns=tuple(round(duration * ratio) for duration in node.durations_ns))


def recalibrated(graph: Graph, cases: Sequence[tuple[Sequence[str], float]]) -> LinkCalibration:
    """Return the calibration of a graph's link, fitted to measured step times.

    A case is texts of what-ifs, empty for the traced setting, and the measured seconds. Raises `GraphError` for a link
    whose calibration is a table, or without a case.

    Only alpha and beta change. The fit minimises the squares of the logarithms of predicted / measured by a compass
    search over the logarithms of both: each step tries twice and half (then finer factors) of one of them. The errors
    of the settings that it was fitted to say nothing; `verify.judge_again` leaves them out.
    """
    graph = exclusive(graph)
    link = of_trace(graph)
    if link.table or not cases:
        problem = "a table of measured sizes cannot be fitted" if link.table else "no measured setting to fit to"
        raise GraphError(f"recalibration: {problem}")
    choices = [([registry.read(text) for text in texts], measured_s) for texts, measured_s in cases]
    # 0, as for alpha where collectives have one size, cannot be multiplied: begin with 0.1 ms and 80 Gbit/s.
    start = link.alpha_s or 1e-4, link.beta_s_per_byte or 1e-10
    error_by_point: dict[tuple[float, float], float] = {}

    def error(point: tuple[float, float]) -> float:
        if point not in error_by_point:
            changed_graph = _with_link(graph, replace(link, alpha_s=point[0], beta_s_per_byte=point[1]))
            predicted = [
                (step_time_s(registry.apply(changed_graph, choice)), measured_s) for choice, measured_s in choices
            ]
            error_by_point[point] = sum(math.log(time / measured_s) ** 2 for time, measured_s in predicted)
        return error_by_point[point]

    best = start
    for factor in FACTORS:
        while len(error_by_point) < MOST_REPLAYS:
            alpha, beta = best
            near_points = [
                (alpha * factor, beta),
                (alpha / factor, beta),
                (alpha, beta * factor),
                (alpha, beta / factor),
            ]
            points_inside = [point for point in near_points if _is_near(point, start)]
            following = min(points_inside, key=error, default=best)
            if error(following) >= error(best) * (1 - 1e-9):
                break
            best = following
    source = f"{link.source}, recalibrated by {len(cases)} measured settings"
    return replace(link, alpha_s=best[0], beta_s_per_byte=best[1], source=source)


def with_link(graph: Graph, link: LinkCalibration) -> Graph:
    """Return the graph with another calibration of its link, from durations without contention under the old one."""
    return _with_link(exclusive(graph), link)


def _with_link(graph: Graph, link: LinkCalibration) -> Graph:
    return replace(graph, header=replace(graph.header, link=link))


def _is_near(point: tuple[float, float], start: tuple[float, float]) -> bool:
    return all(
        1 / MOST_CHANGE <= coordinate / start_coordinate <= MOST_CHANGE
        for coordinate, start_coordinate in zip(point, start, strict=True)
    )
