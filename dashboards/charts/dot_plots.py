"""Dot plots: a lane a backend, a dot a value, an interval as a stroke; of the report's cells and the dashboard's rows.

Promise: pure, with no markup; who draws the same figure draws it with the same function, whichever page it is on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import Axis
from keras_matrix.dashboards.charts.format import DASH, MEMORY_UNITS, SECOND, Unit, number, quantity, unit_for
from keras_matrix.records.backends import BACKENDS

MIDDLE = "50%"  # of a lane that is as high as its notes
MOST_LISTED = 12  # values that a tooltip has one by one; of more, the ends


@dataclass(frozen=True, slots=True)
class Mark:
    """One dot: where, of which backend (`slot`), filled or hollow, and what it tells on hovering ("" tells nothing)."""

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
class Group:
    """Dots and a stroke that tell one thing on hovering: those of one process."""

    tip: str
    marks: list[Mark] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded interval over a lane's whole height, with its centre."""

    at: str
    width: str
    centre: str


@dataclass(frozen=True, slots=True)
class Word:
    """Text inside a lane."""

    at: str
    y: float | str
    text: str
    anchor: str = "start"
    dx: int = 0


@dataclass(frozen=True, slots=True)
class Lane:
    """One backend's part of a picture; `summary` says in words what it shows, to readers and on hovering.

    `height` is in pixels; None lets the lane be as high as its notes, with its marks in the middle.
    """

    backend: str
    slot: int
    height: int | None
    figure: str
    notes: list[str]
    summary: str
    marks: list[Mark] = field(default_factory=list)
    strokes: list[Stroke] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    band: Band | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """The lanes of one piece of work on one axis."""

    title: str
    details: str
    verdict: str
    axis: Axis
    lanes: list[Lane]


def slot_of(backend: str) -> int:
    """Return which of the fixed colours and shapes a backend has."""
    return BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence with its ratios as one small picture, `height` pixels high (0: none), in the colour of `slot`."""

    title: str
    text: str
    slot: int | None
    settled: bool
    height: int
    strokes: list[Stroke] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    anchor: str = ""
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's figure, and the values of its processes that it is of: on a dashboard the figure alone."""

    figure: float | None
    values: Sequence[float]

    def text(self, unit: Unit) -> str:
        """Return the figure with the values that it is of."""
        return quantity(self.figure, unit) + in_brackets(self.values, unit)

    def dots(self, axis: Axis, slot: int, *, hollow: bool = False) -> list[Mark]:
        """Return a dot for each value; the lane's own tooltip says what they are."""
        return [Mark(axis.place(value), MIDDLE, slot, hollow=hollow) for value in self.values]


def alone(figure: float | None) -> Measured:
    """Return a figure that is known without the values of its processes."""
    return Measured(figure, [figure] if figure else [])


def in_brackets(values: Sequence[float], unit: Unit, what: str = "") -> str:
    """Return in brackets, without their unit, the values that a figure is of; of many, their ends."""
    if len(values) < 2:
        return ""
    several = values if len(values) <= MOST_LISTED else [min(values), max(values)]
    joint = ", " if several is values else " to "
    return f" ({what}{joint.join(number(value, unit.size) for value in several)})"


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the ends of its interval, None where there is none."""

    centre: float
    low: float | None
    high: float | None

    def drawn(self, axis: Axis, y: float | str, slot: int, tip: str) -> tuple[list[Stroke], list[Mark]]:
        """Return the interval as a stroke, if there is one, and the figure as a dot on it."""
        mark = Mark(axis.place(self.centre), y, slot, tip)
        if not self.low or not self.high:
            return [], [mark]
        return [Stroke(axis.place(self.low), axis.place(self.high), y, y, slot, tip)], [mark]


def epoch_axis(values: Sequence[float]) -> Axis:
    """Return the axis of the times of epochs."""
    return axes.logarithmic(values, "time of an epoch, s (logarithmic)", SECOND)


def memory_axis(peaks: Sequence[float]) -> Axis:
    """Return the axis of the peaks of memory."""
    unit = unit_for(peaks, MEMORY_UNITS)
    return axes.from_zero(peaks, f"peak memory of a process, {unit.name}", unit)


def start_lane(backend: str, axis: Axis, first: Measured, steady: Measured, notes: Sequence[str] = ()) -> Lane:
    """Return the first epoch, hollow, against the steady one; the figure is how many times longer it took."""
    slot, text = slot_of(backend), f"first {quantity(first.figure, SECOND)}, steady {quantity(steady.figure, SECOND)}"
    ratio = f"{number(first.figure / steady.figure)}×" if first.figure and steady.figure else DASH
    summary = f"{backend}: first {first.text(SECOND)}, steady {steady.text(SECOND)}"
    lane = Lane(backend, slot, None, ratio, [text, *notes], summary)
    if first.figure and steady.figure:
        ends = axis.place(steady.figure), axis.place(first.figure)
        lane.strokes.append(Stroke(*ends, MIDDLE, MIDDLE, slot))
    lane.marks.extend([*first.dots(axis, slot, hollow=True), *steady.dots(axis, slot)])
    return lane


def memory_lane(
    backend: str, axis: Axis, host: Measured, device: tuple[Measured, Unit] | None, notes: Sequence[str] = ()
) -> Lane:
    """Return the peaks of the host's memory, filled, and of the device's, hollow, in a unit of its own.

    `device` is None where there is no device memory to miss.
    """
    slot, (peak, unit) = slot_of(backend), device or (Measured(None, ()), axis.unit)
    known = peak.figure is not None
    shown_device = [f"device {quantity(peak.figure, unit)}" if known else "device not measured"] if device else []
    summary = [f"host {host.text(axis.unit)}", f"device {peak.text(unit) if known else 'not measured'}", *notes]
    shown = [*shown_device, *notes] if known or host.figure is not None else ["not measured"]
    lane = Lane(backend, slot, None, quantity(host.figure, axis.unit), shown, f"{backend}: {', '.join(summary)}")
    lane.marks.extend([*host.dots(axis, slot), *peak.dots(axis, slot, hollow=True)])
    return lane
