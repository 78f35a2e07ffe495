"""Fits the calibration of a link to measured step times of some settings, by replay.

Only alpha and beta change. The fit minimises the squares of the logarithms of predicted / measured by a compass search
over the logarithms of both: each step tries twice and half (then finer factors) of one of them.

The errors of the settings that it was fitted to say nothing; `verify.judge_again` leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from keras_matrix.analysis.whatif.collectives import of_trace
from keras_matrix.analysis.whatif.contention import exclusive
from keras_matrix.analysis.whatif.graph import Graph, GraphError, LinkCalibration
from keras_matrix.analysis.whatif.replay import step_time_s
from keras_matrix.analysis.whatif.what_ifs import registry

FACTORS = (4.0, 2.0, 1.4, 1.1, 1.03)
MOST_REPLAYS = 200
MOST_CHANGE = 1000.0


def recalibrated(graph: Graph, cases: Sequence[tuple[Sequence[str], float]]) -> LinkCalibration:
    """Return the calibration of a graph's link, fitted to measured step times.

    A case is texts of what-ifs, empty for the traced setting, and the measured seconds. Raises `GraphError` for a link
    whose calibration is a table, or without a case.
    """
    graph = exclusive(graph)
    link = of_trace(graph)
    if link.table or not cases:
        what = "a table of measured sizes cannot be fitted" if link.table else "no measured setting to fit to"
        raise GraphError(f"recalibration: {what}")
    choices = [([registry.read(text) for text in texts], measured_s) for texts, measured_s in cases]
    # 0, as for alpha where collectives have one size, cannot be multiplied: begin with 0.1 ms and 80 Gbit/s.
    start = link.alpha_s or 1e-4, link.beta_s_per_byte or 1e-10
    tried: dict[tuple[float, float], float] = {}

    def error(point: tuple[float, float]) -> float:
        if point not in tried:
            changed = _with_link(graph, replace(link, alpha_s=point[0], beta_s_per_byte=point[1]))
            predicted = [(step_time_s(registry.apply(changed, one)), measured_s) for one, measured_s in choices]
            tried[point] = sum(math.log(time / measured_s) ** 2 for time, measured_s in predicted)
        return tried[point]

    best = start
    for factor in FACTORS:
        while len(tried) < MOST_REPLAYS:
            alpha, beta = best
            near = [(alpha * factor, beta), (alpha / factor, beta), (alpha, beta * factor), (alpha, beta / factor)]
            inside = [one for one in near if _is_near(one, start)]
            following = min(inside, key=error, default=best)
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
    return all(1 / MOST_CHANGE <= one / first <= MOST_CHANGE for one, first in zip(point, start, strict=True))
