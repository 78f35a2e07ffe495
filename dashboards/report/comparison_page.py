"""A comparison of base and new as one self-contained page: a line per comparison, its ratio, interval and blocks.

Pure functions. The shaded area is the tolerance of the threshold.
"""

from __future__ import annotations

from keras_matrix.analysis.comparison.ratios import change_text
from keras_matrix.analysis.comparison.versus import Versus
from keras_matrix.analysis.regression.gate import GateOutcome
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.comparison_view import CellChange, ComparisonView, MeanChange
from keras_matrix.dashboards.charts.axes import Axis, fitted
from keras_matrix.dashboards.charts.dot_plots import RatioPlot, interval_marks
from keras_matrix.dashboards.charts.picture import Area, Dot, Mark, Picture, Segment, slot_of
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.text import Unit, percent_change, percentage, plural

HEIGHT = 40
DOTS_Y = 28
WHISKER_Y = 12
NARROWEST = 0.10


def page(view: ComparisonView) -> str:
    """Return the page."""
    axis, threshold, null = _axis(view), view.threshold, view.versus.null
    is_void = null is not None and null.void
    cell_lines = [_line(change, axis, threshold, is_checked=null is not None) for change in view.cells]
    return rendered(
        "comparison_page.html",
        stylesheet(),
        heading=f"New against base: {'void' if is_void else view.versus.outcome}",
        tally=", ".join(f"{plural(count, 'comparison')} {outcome}" for outcome, count in view.outcomes.items()),
        changed=_facts(view.versus),
        lead=_lead(view),
        lines=[*cell_lines, *(_mean(mean, axis, threshold) for mean in view.means)],
        axis=axis,
    )


def _facts(versus: Versus) -> list[tuple[str, ...]]:
    """Return the runs of base and new, the recorded differences between them, and the notes."""
    runs = list(zip(("base", "new"), versus.runs, strict=True)) if versus.runs else []
    changed_facts = [tuple(line.split(" ", 1)) for line in versus.changed] or [("changed", "nothing that was recorded")]
    null_facts = [("null arms", versus.null.said)] if versus.null else []
    return [*runs, *null_facts, *changed_facts, *(("note", note) for note in versus.notes)]


def _lead(view: ComparisonView) -> str:
    if view.versus.paired:
        text = (
            "Each line is the ratio of the time of a step in new to that in base, with its 95 % interval; a dot is one "
            "block of two interleaved processes."
        )
    else:
        text = (
            "Base and new are separate sessions without pairs: an interval includes the spread between sessions, and "
            "is missing if that is not known."
        )
    return f"{text} The shaded area is the tolerance of the threshold of {percentage(view.threshold)}."


def _axis(view: ComparisonView) -> Axis | None:
    values = [ratio for change in view.cells for ratio in change.blocks]
    ratios = [change.comparison.ratio for change in view.cells if change.comparison.ratio]
    values += [end for ratio in ratios for end in (ratio.centre, ratio.low, ratio.high) if end]
    if not values:
        return None
    return fitted([*values, 1.0, 1 + view.threshold], "new / base, time of a step", Unit("x", 1.0), NARROWEST)


def _line(change: CellChange, axis: Axis | None, threshold: float, *, is_checked: bool) -> RatioPlot:
    comparison, slot = change.comparison, slot_of(change.backend)
    if axis is None or comparison.ratio is None:
        return RatioPlot(change.name, comparison.said, slot, False)
    text = "; ".join([f"{_text(comparison.ratio)}: {comparison.said}", *comparison.failures])
    if comparison.all_data:
        text += f"; with the disturbed blocks, too: {_text(comparison.all_data)}"
    blocks = [
        Dot(axis.place(ratio), DOTS_Y, slot, f"block {block}: {percent_change(ratio)}", hollow=True)
        for block, ratio in enumerate(change.blocks, 1)
    ]
    if is_checked and change.shown_from:
        text += f"; a change would show from {percent_change(1 + change.shown_from)}"
    is_settled = comparison.outcome in (GateOutcome.REGRESSED, GateOutcome.NO_WORSE)
    line, centre = interval_marks(_ends(comparison.ratio), axis, WHISKER_Y, slot, _text(comparison.ratio))
    picture = Picture(HEIGHT, [*line, *blocks, centre], summary=f"{change.name}: {text}")
    picture.axes.extend(_tolerance(axis, threshold, HEIGHT))
    return RatioPlot(change.name, text, slot, is_settled, picture)


def _mean(mean: MeanChange, axis: Axis | None, threshold: float) -> RatioPlot:
    title = f"geometric mean on {mean.backend}" if mean.backend else "geometric mean of all"
    slot, estimate, height = slot_of(mean.backend or ""), mean.suite.estimate, HEIGHT // 2 + 4
    text = _text(estimate)
    if axis is None:
        return RatioPlot(title, text, slot, False)
    line, centre = interval_marks(_ends(estimate), axis, WHISKER_Y, slot, text)
    picture = Picture(height, [*line, centre], _tolerance(axis, threshold, height), summary=f"{title}: {text}")
    return RatioPlot(title, text, slot, False, picture)


def _tolerance(axis: Axis, threshold: float, height: float) -> list[Mark]:
    """Return the area that the threshold tolerates, the rules of the axis, and the line of no change."""
    low, tolerated, same = axis.place(axis.low), axis.share(1 + threshold) - axis.share(axis.low), axis.place(1.0)
    rules = [Segment(tick.at, 0, tick.at, height, "rule") for tick in axis.ticks()]
    area = Area(low, 0, f"{tolerated:.2f}%", height, "band", slot_of(""))
    return [area, *rules, Segment(same, 0, same, height, "one")]


def _ends(ratio: Estimate) -> tuple[float, float | None, float | None]:
    return ratio.centre, ratio.low, ratio.high


def _text(ratio: Estimate) -> str:
    return change_text(ratio) + ("" if ratio.bounds else ", no interval")
