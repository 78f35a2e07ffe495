"""The answer of a race as one self-contained page: a line per candidate with its blocks, and where it was dropped.

Pure functions. The shaded area is the tolerated excess over the fastest.
"""

from __future__ import annotations

from keras_matrix.analysis.comparison.ratios import bracketed
from keras_matrix.analysis.views.tune_view import CandidateRow, TuneView
from keras_matrix.dashboards.charts.axes import Axis, fitted
from keras_matrix.dashboards.charts.dot_plots import RatioPlot, interval_marks
from keras_matrix.dashboards.charts.picture import Area, Dot, Mark, Picture, Segment, slot_of
from keras_matrix.dashboards.report.page import rendered, stylesheet
from keras_matrix.records.text import Unit, percentage, ratio_text, seconds

HEIGHT = 40
DOTS_Y = 28
WHISKER_Y = 12
NARROWEST = 0.10


def page(view: TuneView) -> str:
    """Return the page."""
    axis = _axis(view)
    return rendered(
        "tune_page.html",
        stylesheet(),
        heading=view.head,
        promise=view.promise,
        answers=view.answers,
        lead=_lead(view),
        lines=[_line(row, view, axis) for row in view.rows],
        axis=axis,
        effects=view.effect_rows,
        lists=[
            ("Left the race", view.failed_texts),
            ("Impossible", view.impossible_texts),
            ("Never tried", list(view.untried)),
            ("What to try with more time", list(view.advice)),
        ],
        run_id=view.run_id,
    )


def _lead(view: TuneView) -> str:
    return (
        f"Each line is a candidate: its {view.cost_name} over that of the leader of all. A dot is one block, in which "
        "all candidates left are measured interleaved: where the dots end, the candidate was dropped. The shaded area "
        f"is the tolerated excess of {percentage(view.within)}."
    )


def _axis(view: TuneView) -> Axis | None:
    values = [ratio for row in view.rows for ratio in row.ratios.values()]
    values += [
        end for row in view.rows if row.ratio for end in (row.ratio.centre, row.ratio.low, row.ratio.high) if end
    ]
    title = f"{view.cost_name}, over that of the leader"
    return fitted([*values, 1.0, 1 + view.within], title, Unit("x", 1.0), NARROWEST) if values else None


def _line(row: CandidateRow, view: TuneView, axis: Axis | None) -> RatioPlot:
    slot = slot_of(row.backend)
    ratio = bracketed(row.ratio) if row.ratio else ratio_text(1.0)
    remarks = [row.state, *(["the default"] if row.is_default else []), *row.other_numbers]
    text = f"{seconds(row.cost_s)}, {ratio}: {', '.join(remarks)}"
    if axis is None:
        return RatioPlot(row.name, text, slot, False)
    dots = [
        Dot(axis.place(value), DOTS_Y, slot, f"block {number}: {ratio_text(value)}", hollow=True)
        for number, value in row.ratios.items()
    ]
    ends = (row.ratio.centre, row.ratio.low, row.ratio.high) if row.ratio else (1.0, None, None)
    line, centre = interval_marks(ends, axis, WHISKER_Y, slot, ratio)
    picture = Picture(HEIGHT, [*line, *dots, centre], _tolerance(axis, view.within), summary=f"{row.name}: {text}")
    return RatioPlot(row.name, text, slot, row.state == "fastest", picture)


def _tolerance(axis: Axis, within: float) -> list[Mark]:
    """Return the area that is tolerated, the rules of the axis, and the line of the leader."""
    low, width = axis.place(axis.low), axis.share(1 + within) - axis.share(axis.low)
    rules = [Segment(tick.at, 0, tick.at, HEIGHT, "rule") for tick in axis.ticks()]
    area = Area(low, 0, f"{width:.2f}%", HEIGHT, "band", slot_of(""))
    return [area, *rules, Segment(axis.place(1.0), 0, axis.place(1.0), HEIGHT, "one")]
