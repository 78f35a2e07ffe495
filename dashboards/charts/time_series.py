"""Time series: one cell on one machine over its sessions, as values for any page.

A dot per session with its interval, baselines as lines with a band, changes as vertical strokes. Pure functions;
sessions are placed in their order, not by time. Changes are found by `analysis.history`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.history import change_points as analysis
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import EDGE, Axis
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Area, Dot, Inset, Mark, Picture, Segment, Word
from keras_matrix.records.text import PERCENT, Unit, percent_change, plural, quantity, unit_for

HEIGHT = 230
LABELS_HEIGHT = 34
DATES_HEIGHT = 22
MOST_DRAWN = 250
MOST_DATES = 6
LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One session's value in the base unit, the ends of its interval, and further text for its tooltip."""

    run_id: str
    centre: float
    low: float | None
    high: float | None
    tip: str

    @property
    def ends(self) -> list[float]:
        """Return the values that the axis must include."""
        return [end for end in (self.low, self.centre, self.high) if end]


@dataclass(frozen=True, slots=True)
class ChangePlace:
    """A change before the point `index`, with its ratio if known. `kind` is its class in the style sheet."""

    index: int
    ratio: float | None
    kind: str
    words: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Series:
    """The data of a time series: `quantity` is name and base unit, `without_value` are runs without an ok process.

    The axis fits the values; that of shares, whose base unit is `%`, begins at zero.
    """

    title: str
    details: str
    slot: int
    quantity: tuple[str, str]
    points: Sequence[SeriesPoint]
    changes: Sequence[ChangePlace] = ()
    baselines: Sequence[analysis.Level] = ()
    without_value: Sequence[str] = ()
    cell_id: str = ""

    def unit(self) -> Unit:
        """Return the unit that suits the newest sessions."""
        values = sorted(end for point in self.points[-MOST_DRAWN:] for end in point.ends)
        if self.quantity[1] == PERCENT.name:
            return PERCENT
        return unit_for([values[len(values) // 2]]) if self.quantity[1] == "s" else Unit(self.quantity[1], 1.0)


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A change that is drawn, as the page lists it."""

    kind: str
    when: str
    size: str
    words: str
    run_id: str


@dataclass(frozen=True, slots=True)
class SeriesPicture:
    """One series as it is drawn: its values, the labels of the vertical axis on their left, the dates below them."""

    series: Series
    axis: Axis
    baseline: str
    earlier: int
    values: Picture
    labels: Picture
    dates: Picture
    changes: list[DrawnChange]


def picture(series: Series, baseline: str) -> SeriesPicture:
    """Return the newest sessions of a series; `baseline` describes its current level."""
    earlier_count = max(0, len(series.points) - MOST_DRAWN)
    shown_points, unit = series.points[earlier_count:], series.unit()
    title = f"{series.quantity[0]}, {unit.name}".removesuffix(", ")
    ends = [end for point in shown_points for end in point.ends]
    axis = axes.from_zero([*ends, LEAST_SHARE], title, unit) if unit == PERCENT else axes.fitted(ends, title, unit)
    layout = _Layout(axis, series.slot, len(shown_points), earlier_count)
    changes = [(change, number) for number, change in enumerate(series.changes) if change.index >= earlier_count]
    values = Picture(HEIGHT, summary=f"{series.title}: {plural(len(changes), 'change')}; {baseline}")
    labels = Picture(HEIGHT, role="values")
    for tick in axis.ticks():
        y = up(float(tick.at.rstrip("%")), HEIGHT)
        values.axes.append(Segment(0, y, "100%", y, "rule"))
        labels.axes.append(Word("100%", y + TO_MIDDLE, tick.label, anchor="end", dx=-8))
    values.marks.extend(
        mark for level in series.baselines if level.last >= earlier_count for mark in layout.level(level)
    )
    values.marks.extend(
        layout.whisker(point, index) for index, point in enumerate(shown_points) if point.low and point.high
    )
    values.marks.extend(mark for change, number in changes for mark in layout.change(change, number))
    values.marks.extend(layout.dot(point, index) for index, point in enumerate(shown_points))
    values.marks.extend(layout.crosses(series, shown_points))
    dates = Picture(DATES_HEIGHT, axes=layout.dates(shown_points), role="dates")
    drawn_changes = [_drawn(change) for change, _ in changes]
    return SeriesPicture(series, axis, baseline, earlier_count, values, labels, dates, drawn_changes)


def as_file(picture: SeriesPicture) -> Picture:
    """Return a series with its texts in one picture."""
    title, details, slot = picture.series.title, picture.series.details, picture.series.slot
    words = [
        Word(12, 20, title, "title"),
        Word(12, 40, details),
        Word(12, 60, f"{picture.axis.title}; {picture.baseline}"),
    ]
    insets = [Inset(0, 70, 70, picture.labels), Inset(70, 70, 715, picture.values), Inset(70, 302, 715, picture.dates)]
    return Picture(330, [*words, *insets], summary=picture.values.summary, role=f"s{slot}", width=800)


def _drawn(change: ChangePlace) -> DrawnChange:
    return DrawnChange(change.kind, date(change.run_id), _size(change), change.words, change.run_id)


def _size(change: ChangePlace) -> str:
    return percent_change(change.ratio) if change.ratio is not None else "from the start"


def up(share: float, height: float) -> float:
    """Return the height of a share of an axis in per cent, below the labels of the changes."""
    return round(LABELS_HEIGHT + (1 - share / 100) * (height - LABELS_HEIGHT), 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions: sessions by their number along the width, values along the height."""

    axis: Axis
    slot: int
    count: int
    earlier: int

    def share(self, index: float) -> float:
        share = index / (self.count - 1) if self.count > 1 else 0.5
        return EDGE + min(1.0, max(0.0, share)) * (100 - 2 * EDGE)

    def across(self, index: float) -> str:
        return f"{self.share(index):.2f}%"

    def height(self, value: float) -> float:
        return up(self.axis.share(value), HEIGHT)

    def dot(self, point: SeriesPoint, index: int) -> Dot:
        tip = f"{point.run_id}: {quantity(point.centre, self.axis.unit)}, {point.tip}"
        return Dot(self.across(index), self.height(point.centre), self.slot, tip)

    def whisker(self, point: SeriesPoint, index: int) -> Segment:
        assert point.low is not None
        assert point.high is not None
        x = self.across(index)
        return Segment(x, self.height(point.low), x, self.height(point.high), "within", self.slot)

    def level(self, level: analysis.Level) -> list[Mark]:
        """Return a baseline as a line, in front of the band of its interval if it is known."""
        mean_step_time, count = level.step_time, level.last - level.first + 1
        y, tip = (
            self.height(mean_step_time.centre),
            f"{plural(count, 'session')}: {quantity(mean_step_time.centre, self.axis.unit)}",
        )
        left, right = self.share(level.first - self.earlier - 0.4), self.share(level.last - self.earlier + 0.4)
        line = Segment(f"{left:.2f}%", y, f"{right:.2f}%", y, "level", tip=tip)
        if mean_step_time.high is None or mean_step_time.low is None:
            return [line]
        top = self.height(mean_step_time.high)
        height = round(self.height(mean_step_time.low) - top, 1)
        return [Area(f"{left:.2f}%", top, f"{right - left:.2f}%", height, "spread"), line]

    def change(self, change: ChangePlace, number: int) -> list[Mark]:
        """Return a change as a vertical line with its size."""
        index = change.index - self.earlier
        x, is_late = self.across(index - 0.5), self.count > 1 and index > 0.8 * self.count
        y, size, kind = 9 + 15 * (number % 2), _size(change), change.kind
        label = size if kind in ("slower", "faster") else f"{size} {kind}"
        anchor, dx = ("end", -5) if is_late else ("start", 5)
        tip = f"{date(change.run_id)}: {size}; {change.words}"
        line = Segment(x, y - 8, x, HEIGHT, f"change {kind}", tip=tip)
        return [line, Word(x, y, label, f"size {kind}", anchor, dx)]

    def dates(self, shown_points: Sequence[SeriesPoint]) -> list[Mark]:
        """Return the dates of evenly spaced sessions, with hours if all are of one day; the outer ones inwards."""
        step = max(1, -(-(self.count - 1) // (MOST_DATES - 1)))
        marks, day_count = list[Mark](), len({date(point.run_id) for point in shown_points})
        for index in range(0, self.count, step):
            share, run_id = self.share(index), shown_points[index].run_id
            anchor = "start" if share < 8 else "end" if share > 92 else "middle"
            hour_text = "" if day_count > 1 else f" {run_id[9:11]}:{run_id[11:13]}"
            marks.append(Segment(f"{share:.2f}%", 0, f"{share:.2f}%", 5, "tick"))
            marks.append(Word(f"{share:.2f}%", 14 + TO_MIDDLE, date(run_id) + hour_text, anchor=anchor))
        return marks

    def crosses(self, series: Series, shown_points: Sequence[SeriesPoint]) -> list[Word]:
        """Return a cross at each session without a value."""
        run_ids = [point.run_id for point in shown_points]
        places = [
            sum(shown_id < run_id for shown_id in run_ids) - 0.5
            for run_id in series.without_value
            if run_id > run_ids[0]
        ]
        return [Word(self.across(place), HEIGHT - 6 + TO_MIDDLE, "×", anchor="middle") for place in places]


def date(run_id: str) -> str:
    """Return the day on which a run began."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"
