"""Formats of numbers: three significant digits, a common unit for values shown together, a dash for missing values.

`None` becomes `DASH`, never 0. Units differ by powers of 1000 for time and of 1024 for memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

DASH = "—"
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit's name and its size in the base unit (seconds or bytes)."""

    name: str
    size: float


SECOND = Unit("s", 1.0)
MILLISECOND = Unit("ms", 1e-3)
TIME_UNITS = (SECOND, MILLISECOND, Unit("µs", 1e-6), Unit("ns", 1e-9))
MEMORY_UNITS = (Unit("TiB", 2.0**40), Unit("GiB", 2.0**30), Unit("MiB", 2.0**20), Unit("KiB", 2.0**10), Unit("B", 1.0))


def unit_for(values: Iterable[float], units: tuple[Unit, ...] = TIME_UNITS) -> Unit:
    """Return the largest unit in which the largest of the values is at least 1."""
    largest = max(values, default=0.0)
    return next((unit for unit in units if largest >= unit.size), units[-1 if largest > 0 else 0])


def decimals(value: float) -> int:
    """Return the number of decimals of a value with three significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    places = DIGITS - 1 - math.floor(math.log10(abs(value)))
    # Rounding may carry: 9.996 becomes 10.0, with one decimal less.
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(round(value, places)))))


def number(value: float | None, unit: float = 1.0) -> str:
    """Return the value in units of `unit`, with three significant digits, or a dash."""
    if value is None:
        return DASH
    scaled = value / unit
    if scaled == 0 or not math.isfinite(scaled):
        return "0" if scaled == 0 else DASH
    rounded = round(scaled, DIGITS - 1 - math.floor(math.log10(abs(scaled))))
    return f"{rounded:,.{decimals(scaled)}f}"


def quantity(value: float | None, unit: Unit) -> str:
    """Return the value with its unit, or a dash."""
    return DASH if value is None else f"{number(value, unit.size)}\u00a0{unit.name}"


def interval(low: float | None, high: float | None, centre: float, unit: float = 1.0) -> str | None:
    """Return `low–high` with the decimals of the centre; None without an interval."""
    if low is None or high is None:
        return None
    places = decimals(centre / unit)
    return f"{low / unit:,.{places}f}–{high / unit:,.{places}f}"


def integer(value: int | None) -> str:
    """Return an integer with thousands separators, or a dash."""
    return DASH if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """Return a share as a percentage, or a dash."""
    if value is None:
        return DASH
    return f"{value * 100:.0f}\u00a0%" if value >= 0.1 else f"{value * 100:.1f}\u00a0%"


def memory(value: int | None) -> str:
    """Return bytes in a suitable unit, or a dash."""
    return DASH if value is None else quantity(value, unit_for([value], MEMORY_UNITS))


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return `1 repeat`, `2 repeats`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(label: object) -> str:
    """Return an ISO 8601 time as `21 November 2025, 05:25 UTC`; any other text unchanged."""
    try:
        when = datetime.fromisoformat(str(label))
    except ValueError:
        return str(label)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
