"""Dot plots: one strip per backend, a dot per value, a line for an interval; for the report and the dashboard.

A figure that is on both pages is drawn by the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.picture import (
    MIDDLE,
    TO_MIDDLE,
    Area,
    Dot,
    Mark,
    Picture,
    Place,
    Segment,
    Word,
    slot_of,
)
from keras_matrix.records.settings import CALLS
from keras_matrix.records.text import (
    MEMORY_UNITS,
    NOTHING,
    SECOND,
    Unit,
    interval,
    number,
    quantity,
    ratio_text,
    unit_for,
)

Ends = tuple[float, float | None, float | None]
"""A figure with its interval: centre, low, high."""
PERCENTILES = ("p50", "p99")
DRAWN_OF_CALLS = ("call", "ratio", *PERCENTILES)  # the other columns of a call are its notes
MOST_LISTED = 12  # values listed in a tooltip; of more values, only the smallest and the largest


@dataclass(frozen=True, slots=True)
class Strip:
    """One backend's picture in a row, with its name, its figure and its notes."""

    backend: str
    figure: str
    notes: list[str]
    picture: Picture


@dataclass(frozen=True, slots=True)
class StripPicture:
    """The strips of one piece of work on one axis."""

    title: str
    details: str
    axis: Axis
    strips: list[Strip]


@dataclass(frozen=True, slots=True)
class RatioPlot:
    """A verdict with its ratios as one small picture, if it has ratios, in the colour of `slot`.

    `caveats` are the named ones, `advice` is what would decide a verdict that is open.
    """

    title: str
    text: str
    slot: int | None
    settled: bool
    picture: Picture | None = None
    anchor: str = ""
    caveats: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


def strip_picture(slot: int, height: float | None, summary: str, marks: Sequence[Mark] = ()) -> Picture:
    """Return the picture of a strip, whose summary is its tooltip."""
    return Picture(height, list(marks), title=summary, role="", slot=slot)


def band(place: Place, share: float, height: float, tip: str = "") -> Area:
    """Return an interval over the height of a strip, `share` per cent of its width wide, but at least visible."""
    return Area(place, 1, f"{max(share, 0.1):.2f}%", height - 2, "band", tip=tip, radius=2)


def bar_part(start: float, end: float, height: float, role: str, tip: str = "") -> Area:
    """Return a part of a bar between two shares of the width in per cent."""
    return Area(f"{start:.2f}%", 4, f"{end - start:.2f}%", height - 8, role, tip=tip)


def level(y: float, label: str) -> list[Mark]:
    """Return a horizontal line behind curves with its label on the left."""
    return [Segment(0, y, "100%", y, "rule"), Word(-4, round(y + TO_MIDDLE, 1), label, "height")]


@dataclass(frozen=True, slots=True)
class CellFigure:
    """A cell's figure, and the values of its processes, of which it was computed; a dashboard has only the figure."""

    figure: float | None
    values: Sequence[float]

    def text(self, unit: Unit) -> str:
        """Return the figure with the values of its processes."""
        return quantity(self.figure, unit) + in_brackets(self.values, unit)

    def dots(self, axis: Axis, slot: int, *, hollow: bool = False) -> list[Dot]:
        """Return a dot for each value; the strip's own tooltip says what they are."""
        return [Dot(axis.place(value), MIDDLE, slot, hollow=hollow) for value in self.values]


def alone(figure: float | None) -> CellFigure:
    """Return a figure without the values of its processes, as in the warehouse."""
    return CellFigure(figure, [figure] if figure else [])


def in_brackets(values: Sequence[float], unit: Unit, prefix: str = "") -> str:
    """Return values in brackets without their unit; of many values, the smallest and the largest."""
    if len(values) < 2:
        return ""
    listed_values, joint = (values, ", ") if len(values) <= MOST_LISTED else ([min(values), max(values)], " to ")
    return f" ({prefix}{joint.join(number(value, unit.size) for value in listed_values)})"


def interval_marks(ends: Ends, axis: Axis, y: Place, slot: int, tip: str) -> tuple[list[Segment], Dot]:
    """Return an interval (centre, low, high) as a line, if it is known, and its centre as a dot."""
    centre, low, high = ends
    lines = [Segment(axis.place(low), y, axis.place(high), y, "whisker", slot, tip)] if low and high else []
    return lines, Dot(axis.place(centre), y, slot, tip)


@dataclass(frozen=True, slots=True)
class CallFigures:
    """A way of calling a model on a backend: its times and its ratio as (centre, low, high), if they are known.

    `texts` is its row in the ladder of calls, by column. `is_reference`: the ratios of its ladder divide by it.
    """

    backend: str
    call: str
    is_reference: bool
    mean_s: float | None
    percentiles: Mapping[str, Ends]
    ratio: Ends | None
    texts: Mapping[str, str]

    @property
    def times_s(self) -> list[float]:
        """The times that its strip shows."""
        return [*([self.mean_s] if self.mean_s else []), *(ends[0] for ends in self.percentiles.values())]


def call_pictures(groups: Sequence[tuple[str, Sequence[CallFigures]]]) -> list[StripPicture]:
    """Return a picture for each title with its calls, all on one axis."""
    times_s = sorted(time_s for _, calls in groups for call in calls for time_s in call.times_s)
    if not times_s:
        return []
    unit = unit_for([times_s[len(times_s) // 2]])
    axis = axes.logarithmic(times_s, f"time of a call, {unit.name} (logarithmic)", unit)
    return [
        StripPicture(title, "", axis, [_call_strip(call, axis) for call in _ordered(calls)]) for title, calls in groups
    ]


def _ordered(calls: Sequence[CallFigures]) -> list[CallFigures]:
    return sorted(
        calls,
        key=lambda one: (slot_of(one.backend), CALLS.index(one.call) if one.call in CALLS else len(CALLS), one.call),
    )


def _call_strip(figures: CallFigures, axis: Axis) -> Strip:
    """Return a call's median (filled), 99th percentile (hollow) and mean (tick); the figure is the ratio of means."""
    name, slot, texts = f"{figures.backend}, {figures.call}", slot_of(figures.backend), figures.texts
    figure, notes = NOTHING, [texts["ratio"]]
    if figures.ratio is not None:
        centre, low, high = figures.ratio
        figure, notes = ratio_text(centre), [interval(low, high, centre) or "no interval"]
    elif figures.is_reference:
        figure, notes = "1", ["the others are divided by it"]
    known_texts = {name: quantity(ends[0], axis.unit) for name, ends in figures.percentiles.items()}
    notes.append(", ".join(f"{name} {known_texts.get(name, NOTHING)}" for name in PERCENTILES))
    notes += [f"{column} {text}" for column, text in texts.items() if column not in DRAWN_OF_CALLS and text != NOTHING]
    mean_text = f"mean {quantity(figures.mean_s, axis.unit)}"
    picture = strip_picture(slot, None, f"{name}: {'; '.join([figure, mean_text, *notes])}")
    if figures.mean_s:
        mean = axis.place(figures.mean_s)
        picture.marks.append(Segment(mean, "20%", mean, "80%", "centre", tip=f"{name}: {mean_text}"))
    for percentile, ends in reversed(list(figures.percentiles.items())):
        lines, dot = interval_marks(ends, axis, MIDDLE, slot, f"{name}: {percentile} {texts[percentile]}")
        picture.marks.extend([*lines, replace(dot, hollow=percentile != PERCENTILES[0])])
    return Strip(name, figure, notes, picture)


def epoch_axis(values: Sequence[float]) -> Axis:
    """Return the axis for times of epochs."""
    return axes.logarithmic(values, "time of an epoch, s (logarithmic)", SECOND)


def memory_axis(peaks: Sequence[float]) -> Axis:
    """Return the axis for peaks of memory."""
    unit = unit_for(peaks, MEMORY_UNITS)
    return axes.from_zero(peaks, f"peak memory of a process, {unit.name}", unit)


def start_strip(
    backend: str, axis: Axis, first_epoch: CellFigure, steady: CellFigure, notes: Sequence[str] = ()
) -> Strip:
    """Return the first epoch (hollow) and the steady one (filled); the figure is the ratio of their times."""
    slot, text = (
        slot_of(backend),
        f"first {quantity(first_epoch.figure, SECOND)}, steady {quantity(steady.figure, SECOND)}",
    )
    ratio = ratio_text(first_epoch.figure / steady.figure) if first_epoch.figure and steady.figure else NOTHING
    summary = f"{backend}: first {first_epoch.text(SECOND)}, steady {steady.text(SECOND)}"
    picture = strip_picture(slot, None, summary)
    if first_epoch.figure and steady.figure:
        line = Segment(axis.place(steady.figure), MIDDLE, axis.place(first_epoch.figure), MIDDLE, "reach")
        picture.marks.append(line)
    picture.marks.extend([*first_epoch.dots(axis, slot, hollow=True), *steady.dots(axis, slot)])
    return Strip(backend, ratio, [text, *notes], picture)


def memory_strip(
    backend: str, axis: Axis, host: CellFigure, device: tuple[CellFigure, Unit] | None, notes: Sequence[str] = ()
) -> Strip:
    """Return the peaks of host memory (filled) and of device memory (hollow), each in its own unit.

    `device` is None for a cell without device memory, such as one on a CPU.
    """
    slot, (peak, unit) = slot_of(backend), device or (CellFigure(None, ()), axis.unit)
    is_measured = peak.figure is not None
    shown_device = [f"device {quantity(peak.figure, unit)}" if is_measured else "device not measured"] if device else []
    summary = [f"host {host.text(axis.unit)}", f"device {peak.text(unit) if is_measured else 'not measured'}", *notes]
    shown_notes = [*shown_device, *notes] if is_measured or host.figure is not None else ["not measured"]
    dots = [*host.dots(axis, slot), *peak.dots(axis, slot, hollow=True)]
    picture = strip_picture(slot, None, f"{backend}: {', '.join(summary)}", dots)
    return Strip(backend, quantity(host.figure, axis.unit), shown_notes, picture)
