"""The picture of a gain: throughput by number of workers or devices, as a multiple of that of one. No markup.

Pure functions; only measured values are drawn. Both scales are logarithmic, so that the ideal is a straight line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

from keras_matrix.dashboards.charts.dot_plots import DotMark, Stroke, Word, slot_of
from keras_matrix.records.text import interval, number, plural

MOST_PANELS = 24
PANEL_HEIGHT = 190
TOP, BOTTOM = 12.0, 30.0
LEFT, RIGHT = 11.0, 95.0  # of a panel's width, in per cent

Gains = dict[int, tuple[float, float | None, float | None]]
"""By number of workers: throughput as a multiple of that of one, and the ends of its interval."""
NO_GAIN: Gains = {1: (1.0, None, None)}


Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class GainPanel:
    """One small picture: throughput by workers, relative to one worker, of one piece of work on every backend."""

    title: str
    details: str
    summary: str
    height: int = PANEL_HEIGHT
    rules: list[Stroke] = field(default_factory=list)
    ideal: Stroke | None = None
    strokes: list[Stroke] = field(default_factory=list)
    marks: list[DotMark] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)


def most(things: list[Thing], what: str, left_out: list[str]) -> list[Thing]:
    """Return as many pictures as a page shows; the number of the others is appended to `left_out`."""
    if len(things) > MOST_PANELS:
        left_out.append(f"{plural(len(things) - MOST_PANELS, 'more picture')} of {what} left out; the table has all")
    return things[:MOST_PANELS]


def panel(title: str, details: str, gains: Mapping[str, Gains], noun: str) -> GainPanel:
    """Return the picture of some backends' gains; `noun` is what there are several of, such as worker."""
    counts = sorted({n for points in gains.values() for n in points})
    values = [end for points in gains.values() for ends in points.values() for end in ends if end]
    across, up = _Scale(counts, LEFT + 4, RIGHT - 3), _Scale([*values, counts[-1]], PANEL_HEIGHT - BOTTOM, TOP)
    drawn = GainPanel(title, details, _summary(gains, noun))
    for value in _powers(up.low, up.high):
        drawn.rules.append(Stroke(f"{LEFT}%", "100%", up.at(value), up.at(value), 3))
        drawn.words.append(Word(f"{LEFT}%", up.at(value), f"{value:g}", anchor="end", dx=-5))
    for count in counts:
        drawn.words.append(Word(across.percent(count), PANEL_HEIGHT - 12, str(count), anchor="middle"))
    first, last = counts[0], counts[-1]
    tip = f"as many times as there are {noun}s"
    ideal = Stroke(across.percent(first), across.percent(last), up.at(first), up.at(last), 3, tip)
    for backend, points in gains.items():
        _draw(drawn, (backend, noun), points, (across, up))
    return replace(drawn, ideal=ideal)


def _draw(drawn: GainPanel, names: tuple[str, str], points: Gains, scales: tuple[_Scale, _Scale]) -> None:
    (backend, noun), (across, up), slot = names, scales, slot_of(names[0])
    places = [(across.percent(n), up.at(centre)) for n, (centre, _, _) in points.items()]
    for (x1, y1), (x2, y2) in pairwise(places):
        drawn.strokes.append(Stroke(x1, x2, y1, y2, slot))
    for (n, (centre, low, high)), (x, y) in zip(points.items(), places, strict=True):
        if low and high:
            drawn.strokes.append(Stroke(x, x, up.at(low), up.at(high), slot))
        ends = interval(low, high, centre) or "no interval"
        tip = f"{backend}, {plural(n, noun)}: {number(centre)} times the throughput of one ({ends})"
        drawn.marks.append(DotMark(x, y, slot, tip))


def _summary(gains: Mapping[str, Gains], noun: str) -> str:
    known = [(backend, n, centre) for backend, points in gains.items() for n, (centre, _, _) in points.items() if n > 1]
    return "; ".join(f"{backend} {number(centre)} times with {plural(n, noun)}" for backend, n, centre in known)


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
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    return [2.0**power for power in range(first, last + 1)]
