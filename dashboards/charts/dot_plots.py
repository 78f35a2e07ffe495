"""Dot plots: one strip per backend, a dot per value, a stroke for an interval; for the report and the dashboard.

Pure functions without markup. A figure that is on both pages is drawn by the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.text import MEMORY_UNITS, NOTHING, SECOND, Unit, number, quantity, ratio_text, unit_for

MIDDLE = "50%"  # of a strip that is as high as its notes
MOST_LISTED = 12  # values listed in a tooltip; of more values, only the smallest and the largest


@dataclass(frozen=True, slots=True)
class DotMark:
    """One dot: its place, its backend (`slot`), filled or hollow, and its tooltip ("": no tooltip)."""

    at: str
    y: float | str
    slot: int
    tip: str = ""
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line between two places."""

    x1: str
    x2: str
    y1: float | str
    y2: float | str
    slot: int
    tip: str = ""


@dataclass(frozen=True, slots=True)
class ProcessDots:
    """The dots and the stroke of one process, with a common tooltip."""

    tip: str
    marks: list[DotMark] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded interval over the height of a strip, with its centre if it has one; `kind` is its CSS class."""

    at: str
    width: str
    centre: str = ""
    tip: str = ""
    kind: str = "band"


def band(low: str, share: float, centre: str = "", tip: str = "") -> Band:
    """Return a band from a place on, `share` per cent of the width wide, but at least visible."""
    return Band(low, f"{max(share, 0.1):.2f}%", centre, tip)


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of one process over time: the path as SVG writes it, and its tooltip."""

    path: str
    tip: str


@dataclass(frozen=True, slots=True)
class Word:
    """Text inside a strip."""

    at: str
    y: float | str
    text: str
    anchor: str = "start"
    dx: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """One backend's part of a picture; `summary` describes it for screen readers and as a tooltip.

    `height` is in pixels; a strip with None is as high as its notes, with its marks in the middle. `heights` are the
    labelled horizontal lines behind curves.
    """

    backend: str
    slot: int
    height: int | None
    figure: str
    notes: list[str]
    summary: str
    marks: list[DotMark] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)
    groups: list[ProcessDots] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    heights: list[tuple[float, str]] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StripPicture:
    """The strips of one piece of work on one axis."""

    title: str
    details: str
    axis: Axis
    strips: list[Strip]


def slot_of(backend: str) -> int:
    """Return the number of a backend's colour and shape."""
    return BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)


@dataclass(frozen=True, slots=True)
class RatioPlot:
    """A verdict with its ratios as one small picture, `height` pixels high (0: no picture), in the colour of `slot`.

    `caveats` are the named ones, `advice` is what would decide a verdict that is open.
    """

    title: str
    text: str
    slot: int | None
    settled: bool
    height: int
    strokes: list[Stroke] = field(default_factory=list)
    marks: list[DotMark] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    anchor: str = ""
    caveats: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True, slots=True)
class CellFigure:
    """A cell's figure, and the values of its processes, of which it was computed; a dashboard has only the figure."""

    figure: float | None
    values: Sequence[float]

    def text(self, unit: Unit) -> str:
        """Return the figure with the values of its processes."""
        return quantity(self.figure, unit) + in_brackets(self.values, unit)

    def dots(self, axis: Axis, slot: int, *, hollow: bool = False) -> list[DotMark]:
        """Return a dot for each value; the strip's own tooltip says what they are."""
        return [DotMark(axis.place(value), MIDDLE, slot, hollow=hollow) for value in self.values]


def alone(figure: float | None) -> CellFigure:
    """Return a figure without the values of its processes, as in the warehouse."""
    return CellFigure(figure, [figure] if figure else [])


def in_brackets(values: Sequence[float], unit: Unit, what: str = "") -> str:
    """Return values in brackets without their unit; of many values, the smallest and the largest."""
    if len(values) < 2:
        return ""
    listed, joint = (values, ", ") if len(values) <= MOST_LISTED else ([min(values), max(values)], " to ")
    return f" ({what}{joint.join(number(value, unit.size) for value in listed)})"


def interval_marks(
    ends: tuple[float, float | None, float | None], axis: Axis, y: float | str, slot: int, tip: str
) -> tuple[list[Stroke], list[DotMark]]:
    """Return an interval (centre, low, high) as a stroke, if it is known, and its centre as a dot."""
    centre, low, high = ends
    strokes = [Stroke(axis.place(low), axis.place(high), y, y, slot, tip)] if low and high else []
    return strokes, [DotMark(axis.place(centre), y, slot, tip)]


def epoch_axis(values: Sequence[float]) -> Axis:
    """Return the axis for times of epochs."""
    return axes.logarithmic(values, "time of an epoch, s (logarithmic)", SECOND)


def memory_axis(peaks: Sequence[float]) -> Axis:
    """Return the axis for peaks of memory."""
    unit = unit_for(peaks, MEMORY_UNITS)
    return axes.from_zero(peaks, f"peak memory of a process, {unit.name}", unit)


def start_strip(backend: str, axis: Axis, first: CellFigure, steady: CellFigure, notes: Sequence[str] = ()) -> Strip:
    """Return the first epoch (hollow) and the steady one (filled); the figure is the ratio of their times."""
    slot, text = slot_of(backend), f"first {quantity(first.figure, SECOND)}, steady {quantity(steady.figure, SECOND)}"
    ratio = ratio_text(first.figure / steady.figure) if first.figure and steady.figure else NOTHING
    summary = f"{backend}: first {first.text(SECOND)}, steady {steady.text(SECOND)}"
    strip = Strip(backend, slot, None, ratio, [text, *notes], summary)
    if first.figure and steady.figure:
        ends = axis.place(steady.figure), axis.place(first.figure)
        strip.strokes.append(Stroke(*ends, MIDDLE, MIDDLE, slot))
    strip.marks.extend([*first.dots(axis, slot, hollow=True), *steady.dots(axis, slot)])
    return strip


def memory_strip(
    backend: str, axis: Axis, host: CellFigure, device: tuple[CellFigure, Unit] | None, notes: Sequence[str] = ()
) -> Strip:
    """Return the peaks of host memory (filled) and of device memory (hollow), each in its own unit.

    `device` is None for a cell without device memory, such as one on a CPU.
    """
    slot, (peak, unit) = slot_of(backend), device or (CellFigure(None, ()), axis.unit)
    known = peak.figure is not None
    shown_device = [f"device {quantity(peak.figure, unit)}" if known else "device not measured"] if device else []
    summary = [f"host {host.text(axis.unit)}", f"device {peak.text(unit) if known else 'not measured'}", *notes]
    shown = [*shown_device, *notes] if known or host.figure is not None else ["not measured"]
    strip = Strip(backend, slot, None, quantity(host.figure, axis.unit), shown, f"{backend}: {', '.join(summary)}")
    strip.marks.extend([*host.dots(axis, slot), *peak.dots(axis, slot, hollow=True)])
    return strip
