"""Axes: positions of values along a picture, and the ticks.

Positions are percentages of the width of a picture: it fits any screen, while dots stay round and text keeps its size.
A scale is linear or logarithmic, and the title says which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.records.text import Unit

EDGE = 2.0  # margin on either side in per cent of the width, so that no dot is cut
MOST_TICKS = 6
FEWEST_TICKS = 4
LEAST_SPAN = 0.10
LOG_FROM_RATIO = 8.0
DECADE = 10.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: str
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` to `high` (base units), labelled in `unit`."""

    title: str
    low: float
    high: float
    log: bool
    unit: Unit

    def share(self, value: float) -> float:
        """Return the position of a value in per cent of the width; values beyond an end are placed at that end."""
        low, high, position = (math.log(x) if self.log else x for x in (self.low, self.high, max(value, 1e-30)))
        inner = min(1.0, max(0.0, (position - low) / (high - low)))
        return EDGE + inner * (100 - 2 * EDGE)

    def place(self, value: float) -> str:
        """Return the position of a value as SVG writes it."""
        return f"{self.share(value):.2f}%"

    def ticks(self) -> list[Tick]:
        """Return at most `MOST_TICKS` round values, in the axis's unit."""
        low, high = self.low / self.unit.size, self.high / self.unit.size
        values = _log_ticks(low, high) if self.log else _linear_ticks(low, high)
        places = max((_places(value) for value in values), default=0)
        labels = [f"{v:,.{_places(v) if self.log else places}f}" for v in values]
        return [Tick(self.place(v * self.unit.size), label) for v, label in zip(values, labels, strict=True)]


def rules(selector: str, axis: Axis, strong: float | None = None) -> str:
    """Return the style that draws vertical rules at an axis's ticks behind the selected elements.

    A page with thousands of strips would have tens of thousands of lines as elements; a background needs none. The rule
    of the value `strong` is emphasized.
    """
    rules = [] if strong is None else [("strong", axis.place(strong))]
    rules += [("thin", tick.at) for tick in axis.ticks()]
    images = ",".join(f"var(--{kind})" for kind, _ in rules)
    return f"{selector}{{background-image:{images};background-position:{','.join(f'{left} 0' for _, left in rules)}}}\n"


def fitted(values: Sequence[float], title: str, unit: Unit, at_least: float = LEAST_SPAN) -> Axis:
    """Return an axis just wide enough for positive values.

    It spans at least the share `at_least` of their middle, so that noise of 0.1 % does not fill the picture, and is
    logarithmic if the largest value is at least `LOG_FROM_RATIO` times the smallest.
    """
    low, high = min(values), max(values)
    if high / low >= LOG_FROM_RATIO:
        return logarithmic(values, title, unit)
    middle, half = (low + high) / 2, max((high - low) / 2, (low + high) / 4 * at_least)
    return Axis(title, middle - half * 1.04, middle + half * 1.04, log=False, unit=unit)


def logarithmic(values: Sequence[float], title: str, unit: Unit, at_least: float = 1.5) -> Axis:
    """Return a logarithmic axis for positive values that spans at least a factor of `at_least`."""
    low, high = min(values), max(values)
    widen = max(1.0, math.sqrt(at_least / (high / low))) * (high / low) ** 0.02
    return Axis(title, low / widen, high * widen, log=True, unit=unit)


def from_zero(values: Sequence[float], title: str, unit: Unit) -> Axis:
    """Return a linear axis from 0 to the largest value."""
    return Axis(title, 0.0, max(values) * 1.02, log=False, unit=unit)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)
    first_index, last_index = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first_index, last_index + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for nice in ((1, 2, 5), (1, 3), (1,)):
        ticks = [n * 10.0**e for e in exponents for n in nice if low <= n * 10.0**e <= high]
        if len(ticks) <= MOST_TICKS:
            break
    if len(ticks) < FEWEST_TICKS and high / low < DECADE:
        # Less than a decade: evenly spaced ticks are more informative than 1, 2, 5.
        return [value for value in _linear_ticks(low, high) if value > 0]
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]


def _places(value: float) -> int:
    text = f"{value:.10f}".rstrip("0")
    return len(text.partition(".")[2])
