"""A comparison of base and new as one self-contained page: a line per comparison, its ratio, interval and blocks.

Pure functions. The shaded area is the tolerance of the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from keras_matrix.analysis.comparison.ratios import change_text
from keras_matrix.analysis.comparison.versus import CellComparison, Versus
from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.dashboards.charts.axes import Axis, fitted
from keras_matrix.dashboards.charts.dot_plots import DotMark, RatioPlot, Stroke, interval_marks, slot_of
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.settings import Settings
from keras_matrix.records.text import Unit, percent_change, percentage, plural

HEIGHT = 40
DOTS_Y = 28
WHISKER_Y = 12
NARROWEST = 0.10


def page(found: Versus, titles: Mapping[str, str], threshold: float) -> str:
    """Return the page; `titles` names each cell's work by its cell_id."""
    axis = _axis(found, threshold)
    lines = [_line(one, titles[one.cell_id], axis) for one in found.comparisons]
    means = [(f"geometric mean on {name}", slot_of(name), suite.estimate) for name, suite in found.by_backend.items()]
    if found.suite and len(means) > 1:
        means.append(("geometric mean of all", slot_of(""), found.suite.estimate))
    lines += [_mean(title, slot, estimate, axis) for title, slot, estimate in means]
    return rendered(
        "comparison_page.html",
        stylesheet(),
        heading=f"New against base: {found.outcome}",
        tally=", ".join(_tally(found)),
        changed=_facts(found),
        lead=_lead(found, threshold),
        lines=lines,
        axis=axis,
        tolerated=f"{axis.share(1 + threshold) - axis.share(axis.low):.2f}%" if axis else "0%",
    )


def _tally(found: Versus) -> Iterable[str]:
    for outcome in GateOutcome:
        if count := sum(one.outcome is outcome for one in found.comparisons):
            yield f"{plural(count, 'comparison')} {outcome}"


def _facts(found: Versus) -> list[tuple[str, ...]]:
    """Return the runs of base and new, the recorded differences between them, and the notes."""
    runs = list(zip(("base", "new"), found.runs, strict=True)) if found.runs else []
    changed = [tuple(line.split(" ", 1)) for line in found.changed] or [("changed", "nothing that was recorded")]
    return [*runs, *changed, *(("note", note) for note in found.notes)]


def _lead(found: Versus, threshold: float) -> str:
    if found.paired:
        text = (
            "Each line is the ratio of the time of a step in new to that in base, with its 95 % interval; a dot is one "
            "block of two interleaved processes."
        )
    else:
        text = (
            "Base and new are separate sessions without pairs: an interval includes the spread between sessions, and "
            "is missing if that is not known."
        )
    return f"{text} The shaded area is the tolerance of the threshold of {percentage(threshold)}."


def _axis(found: Versus, threshold: float) -> Axis | None:
    values = [math.exp(log) for one in found.comparisons for log in one.logs]
    ratios = [one.ratio for one in found.comparisons if one.ratio]
    values += [end for ratio in ratios for end in (ratio.centre, ratio.low, ratio.high) if end]
    if not values:
        return None
    return fitted([*values, 1.0, 1 + threshold], "new / base, time of a step", Unit("x", 1.0), NARROWEST)


def _line(one: CellComparison, title: str, axis: Axis | None) -> RatioPlot:
    settings: Settings = one.either.settings
    slot = slot_of(settings.backend)
    name = f"{title} on {settings.backend}"
    if axis is None or one.ratio is None:
        return RatioPlot(name, one.said, slot, False, 0)
    text = "; ".join([f"{_text(one.ratio)}: {one.said}", *one.failures])
    if one.all_data:
        text += f"; with the disturbed blocks, too: {_text(one.all_data)}"
    marks = [
        DotMark(
            axis.place(math.exp(log)), DOTS_Y, slot, f"block {block + 1}: {percent_change(math.exp(log))}", hollow=True
        )
        for block, log in enumerate(one.logs)
    ]
    strokes, centre = _estimate(one.ratio, slot, axis)
    settled = one.outcome in (GateOutcome.REGRESSED, GateOutcome.NO_WORSE)
    return RatioPlot(name, text, slot, settled, HEIGHT, strokes, marks + centre)


def _mean(title: str, slot: int, estimate: Estimate, axis: Axis | None) -> RatioPlot:
    strokes, marks = _estimate(estimate, slot, axis) if axis else ([], [])
    return RatioPlot(title, _text(estimate), slot, False, HEIGHT // 2 + 4, strokes, marks)


def _estimate(ratio: Estimate, slot: int, axis: Axis) -> tuple[list[Stroke], list[DotMark]]:
    return interval_marks((ratio.centre, ratio.low, ratio.high), axis, WHISKER_Y, slot, _text(ratio))


def _text(ratio: Estimate) -> str:
    return change_text(ratio) + ("" if ratio.bounds else ", no interval")
