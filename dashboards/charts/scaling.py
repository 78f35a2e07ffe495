"""What several workers of the FC modes and several devices of Keras workloads gain: rows of figures, and pictures.

A picture has the throughput by number of workers or devices, as a multiple of that of one. Both scales are
logarithmic, so that the ideal is a straight line. Pictures beyond those that a page shows are counted. Rows consist of
dashes for other cells, and are then left out.

Pure functions; only measured values are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from keras_matrix.analysis.fc import FcFigure
from keras_matrix.analysis.scaling import DeviceScaling, StepBreakdown, on_one_device
from keras_matrix.analysis.stats.blocks import Estimate
from keras_matrix.analysis.views.result_table import CellView, ResultTable
from keras_matrix.dashboards.charts.figure_table import NOT_MEASURED, FigureRow, Value
from keras_matrix.dashboards.charts.picture import TO_MIDDLE, Dot, PanelPicture, Picture, Segment, Word, slot_of
from keras_matrix.records.codec import canonical
from keras_matrix.records.fc.communication import TimingMethod
from keras_matrix.records.settings import MODEL
from keras_matrix.records.text import MIB, NOTHING, PERCENT, interval, number, plural

COMMUNICATION_METHODS = {
    TimingMethod.TIMED: "each collective timed separately, in epochs after the measured ones",
    TimingMethod.PROFILED: "by the backend's profiler",
}
WIRE = "bytes that processes send for it, without headers"
EFFICIENCY = "throughput divided by that of one worker times the workers"
COMMUNICATION = "in communication"
Figure = TypeVar("Figure")
Rows = tuple[tuple[str, str, Callable[[Figure], Value | None]], ...]
MOST_PANELS = 24
PANEL_HEIGHT = 190
TOP, BOTTOM = 12.0, 30.0
LEFT, RIGHT = 11.0, 95.0  # of a panel's width, in per cent
Gains = dict[int, tuple[float, float | None, float | None]]
"""By number of workers: throughput as a multiple of that of one, and the ends of its interval."""
NO_GAIN: Gains = {1: (1.0, None, None)}
Thing = TypeVar("Thing")


def scaling_lines(views: Sequence[CellView | None]) -> list[FigureRow]:
    """Return the rows of a piece of work: what is known of each cell's workers and of its devices."""
    workers = _worker_lines([view.parallel if view else None for view in views])
    return [*workers, *_device_lines([view.scaling if view else None for view in views])]


def _worker_lines(columns: Sequence[FcFigure | None]) -> list[FigureRow]:
    kinds: Rows[FcFigure] = (
        ("share of own product", "%", lambda figure: scaled_value(figure.share_of_own, PERCENT.size)),
        ("payload a step", "MiB", lambda figure: scaled_value(figure.bytes_per_step or None, MIB)),
        ("on the wire a step", "MiB", lambda figure: scaled_value(figure.wire_bytes_per_step or None, MIB, WIRE)),
        (COMMUNICATION, "%", _communicating),
        ("efficiency of workers", "%", lambda figure: _estimate(figure.efficiency, PERCENT.size, EFFICIENCY)),
        ("memory of a worker", "MiB", _worker_memory),
    )
    return _rows(kinds, columns)


def _device_lines(columns: Sequence[DeviceScaling | None]) -> list[FigureRow]:
    kinds: Rows[DeviceScaling] = (
        ("speed-up over one device", "x", _speed_up),
        (
            "efficiency of devices",
            "%",
            lambda scaling: _estimate(scaling.efficiency, PERCENT.size, "speed-up / devices"),
        ),
        (COMMUNICATION, "%", lambda scaling: _spent(scaling.spent) if scaling.spent else None),
        ("divided by", "", _method),
        (
            "rows of a device",
            "",
            lambda scaling: Value(_rows_of_a_device(scaling), hint=f"of {scaling.settings.batch_size}"),
        ),
        ("gradients a step", "MiB", lambda scaling: scaled_value(scaling.replicas.gradient_bytes or None, MIB)),
    )
    return _rows(kinds, columns)


def _rows(kinds: Rows[Figure], columns: Sequence[Figure | None]) -> list[FigureRow]:
    return [
        FigureRow(name, unit, [(figure and value(figure)) or NOT_MEASURED for figure in columns])
        for name, unit, value in kinds
    ]


def _communicating(figure: FcFigure) -> Value | None:
    if figure.spent is None:
        is_silent = figure.communication_share == 0 and figure.task.workers > 1
        return Value("0", hint="no collective was called") if is_silent else None
    return _spent(figure.spent)


def _spent(spent: StepBreakdown) -> Value:
    hint = COMMUNICATION_METHODS[spent.method]
    if spent.share < 0:
        return Value("below 0", hint=f"{hint}; too small to be distinguished from zero")
    return Value(number(spent.share, PERCENT.size), hint=hint)


def _estimate(estimate: Estimate | None, unit: float, hint: str) -> Value | None:
    if estimate is None:
        return None
    return Value(
        number(estimate.centre, unit),
        interval(estimate.low, estimate.high, estimate.centre, unit) or "no interval",
        hint,
    )


def _speed_up(scaling: DeviceScaling) -> Value:
    return _estimate(scaling.speed_up, 1.0, scaling.text) or Value(NOTHING, hint=scaling.missing)


def _method(scaling: DeviceScaling) -> Value:
    remark = "" if scaling.replicas.is_fit else "not fit"
    return Value(scaling.replicas.method.rpartition(".")[2], remark, scaling.replicas.method)


def _rows_of_a_device(scaling: DeviceScaling) -> str:
    return "/".join(str(row_count) for row_count in sorted({replica.rows for replica in scaling.replicas.replicas}))


def _worker_memory(figure: FcFigure) -> Value | None:
    if figure.worker_memory_bytes is None or figure.task.workers == 1:
        return None
    note = "of the largest" if figure.processes > 1 else f"all {figure.task.workers} in one"
    return Value(number(figure.worker_memory_bytes, MIB), note, hint="peak resident memory of a process")


def scaled_value(value: float | None, unit: float, hint: str = "") -> Value | None:
    """Return a value in this unit; None for None."""
    return None if value is None else Value(number(value, unit), hint=hint)


def most(drawings: list[Thing], noun: str, left_out: list[str]) -> list[Thing]:
    """Return as many pictures as a page shows; the number of the others is appended to `left_out`."""
    if len(drawings) > MOST_PANELS:
        left_out.append(f"{plural(len(drawings) - MOST_PANELS, 'more picture')} of {noun} left out; the table has all")
    return drawings[:MOST_PANELS]


def panel(title: str, details: str, gains: Mapping[str, Gains], noun: str) -> PanelPicture:
    """Return the picture of some backends' gains; `noun` is what there are several of, such as worker."""
    counts = sorted({n for points in gains.values() for n in points})
    values = [end for points in gains.values() for ends in points.values() for end in ends if end]
    x_scale, y_scale = _Scale(counts, LEFT + 4, RIGHT - 3), _Scale([*values, counts[-1]], PANEL_HEIGHT - BOTTOM, TOP)
    picture = Picture(PANEL_HEIGHT, summary=f"{title}: {_summary(gains, noun)}")
    for value in _powers(y_scale.low, y_scale.high):
        y = y_scale.at(value)
        picture.axes.append(Segment(f"{LEFT}%", y, "100%", y, "rule"))
        picture.axes.append(Word(f"{LEFT}%", y + TO_MIDDLE, f"{value:g}", anchor="end", dx=-5))
    for count in counts:
        place = x_scale.percent(count)
        picture.axes.append(Word(place, PANEL_HEIGHT - 12 + TO_MIDDLE, str(count), anchor="middle"))
    (x1, y1), (x2, y2) = ((x_scale.percent(count), y_scale.at(count)) for count in (counts[0], counts[-1]))
    picture.marks.append(Segment(x1, y1, x2, y2, "ideal", tip=f"as many times as there are {noun}s"))
    drawn_gains = [_gain((backend, noun), points, (x_scale, y_scale)) for backend, points in gains.items()]
    picture.marks.extend(
        [*(line for lines, _ in drawn_gains for line in lines), *(dot for _, dots in drawn_gains for dot in dots)]
    )
    return PanelPicture(title, details, picture)


def _gain(names: tuple[str, str], points: Gains, scales: tuple[_Scale, _Scale]) -> tuple[list[Segment], list[Dot]]:
    """Return the lines and the dots of a backend."""
    (backend, noun), (x_scale, y_scale), slot = names, scales, slot_of(names[0])
    places = [(x_scale.percent(n), y_scale.at(centre)) for n, (centre, _, _) in points.items()]
    lines = [Segment(*before, *after, "whisker", slot) for before, after in pairwise(places)]
    dots = []
    for (n, (centre, low, high)), (x, y) in zip(points.items(), places, strict=True):
        if low and high:
            lines.append(Segment(x, y_scale.at(low), x, y_scale.at(high), "whisker", slot))
        ends = interval(low, high, centre) or "no interval"
        tip = f"{backend}, {plural(n, noun)}: {number(centre)} times the throughput of one ({ends})"
        dots.append(Dot(x, y, slot, tip))
    return lines, dots


def _summary(gains: Mapping[str, Gains], noun: str) -> str:
    gain_points = [
        (backend, n, centre) for backend, points in gains.items() for n, (centre, _, _) in points.items() if n > 1
    ]
    return "; ".join(f"{backend} {number(centre)} times with {plural(n, noun)}" for backend, n, centre in gain_points)


class _Scale:
    """A logarithmic scale from the smallest to the largest of some values, between two positions."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(1.0, *values), max(values)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the position of a value."""
        width = math.log(self.high / self.low) or 1.0
        return round(self._start + math.log(value / self.low) / width * (self._end - self._start), 2)

    def percent(self, value: float) -> str:
        """Return the position of a value in per cent of the width, as SVG writes it."""
        return f"{self.at(value):.2f}%"


def _powers(low: float, high: float) -> list[float]:
    """Return the powers of two from low to high."""
    first_power, last_power = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first_power, last_power + 1)]


@dataclass(frozen=True, slots=True)
class DevicePictures:
    """The pictures of a run's cells on several devices, and for each row its title and the result of each cell."""

    panels: list[PanelPicture]
    lines: list[tuple[str, list[str]]]
    left_out: list[str]


def pictures(table: ResultTable) -> DevicePictures:
    """Return the pictures of a run's table; empty without cells on several devices."""
    groups: dict[str, list[DeviceScaling]] = {}
    for scaling in table.scalings:
        if scaling.speed_up is not None:
            groups.setdefault(_work(scaling), []).append(scaling)
    left_out = list[str]()
    texts_by_work = [
        (work.row.title, [view.scaling.text for view in work.cells if view.scaling]) for work in table.works
    ]
    lines = [(title, texts) for title, texts in texts_by_work if texts]
    panels = most([_panel(group) for group in groups.values()], "devices", left_out)
    return DevicePictures(panels, lines, left_out)


def _work(scaling: DeviceScaling) -> str:
    """Return the identity of the work that is divided, and of what is divided, for all backends and devices."""
    return canonical(replace(on_one_device(scaling.settings), backend="", distribution=scaling.settings.distribution))


def _panel(group: Sequence[DeviceScaling]) -> PanelPicture:
    settings = group[0].settings
    gains: dict[str, Gains] = {}
    for scaling in sorted(group, key=lambda scaling: (slot_of(scaling.settings.backend), scaling.devices)):
        assert scaling.speed_up is not None
        points = gains.setdefault(scaling.settings.backend, dict(NO_GAIN))
        points[scaling.devices] = (scaling.speed_up.centre, scaling.speed_up.low, scaling.speed_up.high)
    divided_text = "weights divided" if settings.distribution == MODEL else "rows divided"
    return panel(
        group[0].work, f"batch of {settings.batch_size} on all devices together, {divided_text}", gains, "device"
    )
