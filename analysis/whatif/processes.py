"""Moves a graph from the process that was traced to the mean of all processes of the cell.

Processes of one cell differ in speed, by where their memory and threads happened to be placed, so that a prediction
from one of them has its deviation in every figure. The mean has less of it. What keeps a core busy becomes longer or
shorter by one ratio, its measured time in all steps, until the replay takes the mean step time; waits, sleeps and
transfers, which have other causes, are unchanged. A GPU's work does not differ so between processes and is unchanged
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.records.text import percent_change

# The ratio is found to this part of the step time. A larger difference of processes than this ratio has another cause.
TOLERANCE = 0.001
MOST_RATIO = 1.25


def as_mean_process(graph: Graph, step_times_s: Sequence[float]) -> Graph:
    """Return the graph whose replay takes the mean of the step times of a cell's processes, in seconds.

    It is unchanged (apart from contention) for a single process, for a GPU's, and if no ratio up to `MOST_RATIO`
    reaches the mean; the caveat says by how much computation became longer.
    """
    if len(step_times_s) < 2 or graph.header.device != "cpu":
        return graph
    graph, goal_s = exclusive(graph), fmean(step_times_s)
    low, high = 1 / MOST_RATIO, MOST_RATIO
    if not step_time_s(_scaled(graph, low)) <= goal_s <= step_time_s(_scaled(graph, high)):
        return graph
    middle = 1.0
    while abs((time_s := step_time_s(_scaled(graph, middle))) / goal_s - 1) > TOLERANCE and high - low > TOLERANCE / 10:
        low, high = (middle, high) if time_s < goal_s else (low, middle)
        middle = (low + high) / 2
    if middle == 1.0:
        return graph
    caveat = (
        f"computation was made {percent_change(middle)} longer, for the mean of {len(step_times_s)} "
        "processes of the cell"
    )
    moved = _scaled(graph, middle)
    return replace(moved, header=replace(moved.header, caveats=(*moved.header.caveats, caveat)))


def _scaled(graph: Graph, ratio: float) -> Graph:
    return graph.with_nodes([_times(node, ratio) if _is_work(node) else node for node in graph.nodes])


def _is_work(node: Node) -> bool:
    return node.collective is None and node.cores > 0


def _times(node: Node, ratio: float) -> Node:
    return replace(node, durations_ns=tuple(round(duration * ratio) for duration in node.durations_ns))
