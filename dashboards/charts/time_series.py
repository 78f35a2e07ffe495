"""Time series: one cell on one machine over its sessions, as values for `time_series.html` on any page.

A dot per session with its interval, baselines as lines with a band, changes as vertical strokes. Pure functions;
sessions are placed in their order, not by time. Changes are found by `analysis.history`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.history import change_points as analysis
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import EDGE, Axis
from keras_matrix.dashboards.charts.dot_plots import DotMark, Stroke, Word
from keras_matrix.records.text import PERCENT, Unit, percent_change, plural, quantity, unit_for

HEIGHT = 230
LABELS_HEIGHT = 34
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
class BaselineBand:
    """A baseline as drawn: its line, and the band of its interval (None: no band)."""

    line: Stroke
    width: str
    top: float | None
    height: float | None


@dataclass(frozen=True, slots=True)
class DrawnChange:
    """A change as drawn: the vertical stroke, its label, and its description."""

    at: str
    kind: str
    word: Word
    when: str
    size: str
    words: str
    run_id: str


@dataclass(frozen=True, slots=True)
class SeriesPicture:
    """One series as it is drawn."""

    series: Series
    axis: Axis
    heights: list[tuple[float, str]]
    dates: list[Word]
    baseline: str
    earlier: int
    height: int = HEIGHT
    marks: list[DotMark] = field(default_factory=list)
    whiskers: list[Stroke] = field(default_factory=list)
    levels: list[BaselineBand] = field(default_factory=list)
    events: list[DrawnChange] = field(default_factory=list)
    empty: list[Word] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """A description of the picture."""
        return f"{self.series.title}: {plural(len(self.events), 'change')}; {self.baseline}"


def picture(series: Series, baseline: str) -> SeriesPicture:
    """Return the newest sessions of a series as marks and strokes; `baseline` describes its current level."""
    earlier = max(0, len(series.points) - MOST_DRAWN)
    shown, unit = series.points[earlier:], series.unit()
    title = f"{series.quantity[0]}, {unit.name}".removesuffix(", ")
    ends = [end for point in shown for end in point.ends]
    axis = axes.from_zero([*ends, LEAST_SHARE], title, unit) if unit == PERCENT else axes.fitted(ends, title, unit)
    drawn = _Layout(axis, series.slot, len(shown), earlier)
    return SeriesPicture(
        series,
        axis,
        heights=[(up(float(tick.at.rstrip("%")), HEIGHT), tick.label) for tick in axis.ticks()],
        dates=drawn.dates(shown),
        baseline=baseline,
        earlier=earlier,
        marks=[drawn.mark(point, index) for index, point in enumerate(shown)],
        whiskers=[drawn.whisker(point, index) for index, point in enumerate(shown) if point.low and point.high],
        levels=[drawn.level(one) for one in series.baselines if one.last >= earlier],
        events=[drawn.event(one, number) for number, one in enumerate(series.changes) if one.index >= earlier],
        empty=drawn.crosses(series, shown),
    )


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

    def mark(self, point: SeriesPoint, index: int) -> DotMark:
        tip = f"{point.run_id}: {quantity(point.centre, self.axis.unit)}, {point.tip}"
        return DotMark(self.across(index), self.height(point.centre), self.slot, tip)

    def whisker(self, point: SeriesPoint, index: int) -> Stroke:
        assert point.low is not None
        assert point.high is not None
        at = self.across(index)
        return Stroke(at, at, self.height(point.low), self.height(point.high), self.slot)

    def level(self, one: analysis.Level) -> BaselineBand:
        mean, count = one.step_time, one.last - one.first + 1
        y, tip = self.height(mean.centre), f"{plural(count, 'session')}: {quantity(mean.centre, self.axis.unit)}"
        left, right = self.share(one.first - self.earlier - 0.4), self.share(one.last - self.earlier + 0.4)
        line = Stroke(f"{left:.2f}%", f"{right:.2f}%", y, y, self.slot, tip)
        top = self.height(mean.high) if mean.high is not None else None
        height = round(self.height(mean.low) - top, 1) if mean.low is not None and top is not None else None
        return BaselineBand(line, f"{right - left:.2f}%", top, height)

    def event(self, one: ChangePlace, number: int) -> DrawnChange:
        index = one.index - self.earlier
        at, late = self.across(index - 0.5), self.count > 1 and index > 0.8 * self.count
        size = percent_change(one.ratio) if one.ratio is not None else "from the start"
        label = size if one.kind in ("slower", "faster") else f"{size} {one.kind}"
        word = Word(at, 9 + 15 * (number % 2), label, *(("end", -5) if late else ("start", 5)))
        return DrawnChange(at, one.kind, word, date(one.run_id), size, one.words, one.run_id)

    def dates(self, shown: Sequence[SeriesPoint]) -> list[Word]:
        """Return the dates of evenly spaced sessions, with hours if all are of one day; the outer ones inwards."""
        step = max(1, -(-(self.count - 1) // (MOST_DATES - 1)))
        found, days = [], len({date(point.run_id) for point in shown})
        for index in range(0, self.count, step):
            share, run_id = self.share(index), shown[index].run_id
            anchor = "start" if share < 8 else "end" if share > 92 else "middle"
            hour = "" if days > 1 else f" {run_id[9:11]}:{run_id[11:13]}"
            found.append(Word(f"{share:.2f}%", 14, date(run_id) + hour, anchor))
        return found

    def crosses(self, series: Series, shown: Sequence[SeriesPoint]) -> list[Word]:
        """Return a cross at each session without a value."""
        names = [point.run_id for point in shown]
        places = [sum(name < run_id for name in names) - 0.5 for run_id in series.without_value if run_id > names[0]]
        return [Word(self.across(place), HEIGHT - 6, "×", "middle") for place in places]


def date(run_id: str) -> str:
    """Return the day on which a run began."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"
