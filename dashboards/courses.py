"""Panels of two axes: the course of a cell over its sessions, and cells as points under the machine's roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from dashboards import axes
from dashboards.axes import EDGE, Axis
from dashboards.format import Unit, plural, quantity, share, unit_for
from dashboards.pictures import Mark, Stroke, Word, slot_of

Row = Mapping[str, Any]
HEIGHT = 200
FIELD_HEIGHT = 320
MOST_DRAWN = 250
MOST_DATES = 5
MOST_COURSES = 60
FLOP_UNITS = (Unit("TFLOP/s", 1e12), Unit("GFLOP/s", 1e9), Unit("MFLOP/s", 1e6))
INTENSITY = Unit("FLOP/B", 1.0)


@dataclass(frozen=True, slots=True)
class Course:
    """One cell on one machine over its sessions: a dot each, strokes upright where it changed."""

    title: str
    details: str
    cell_id: str
    slot: int
    unit: str
    height: int
    heights: list[tuple[float, str]]
    dates: list[Word]
    summary: str
    marks: list[Mark] = field(default_factory=list)
    whiskers: list[Stroke] = field(default_factory=list)
    changes: list[tuple[Word, str, str]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Field:
    """Points on two logarithmic axes; `bars` lead from a point up to the roof over it."""

    across: Axis | None
    height: int
    heights: list[tuple[float, str]]
    unit: str
    marks: list[Mark] = field(default_factory=list)
    bars: list[Stroke] = field(default_factory=list)
    lines: list[tuple[str, str, str, int]] = field(default_factory=list)


def courses(rows: Sequence[Row]) -> list[Course]:
    """Return a course for each cell, host and device that has a value."""
    groups = groupby(rows, lambda row: (row["cell_id"], row["host_id"], row["device"]))
    found = [course for _, group in groups if (course := _course(list(group)))]
    return found[:MOST_COURSES]


def _course(rows: Sequence[Row]) -> Course | None:
    valued = [row for row in rows if row["step_time_s"]]
    if not valued:
        return None
    shown = valued[-MOST_DRAWN:]
    ends = [v for row in shown for v in (row["low"], row["step_time_s"], row["high"]) if v]
    unit = unit_for([sorted(ends)[len(ends) // 2]])
    axis, first = axes.fitted(ends, f"time per step, {unit.name}", unit), shown[0]
    found = Course(
        title=f"{first['workload']} on {first['backend']}",
        details=f"cell {first['cell_id']} · host {first['host_id']} · {first['device'] or 'no device'}",
        cell_id=str(first["cell_id"]),
        slot=slot_of(str(first["backend"])),
        unit=axis.title + (" (logarithmic)" if axis.log else ""),
        height=HEIGHT,
        heights=[(_up(float(tick.at.rstrip("%")), HEIGHT), tick.label) for tick in axis.ticks()],
        dates=_dates(shown),
        summary=f"{plural(len(valued), 'session')}, newest {quantity(shown[-1]['step_time_s'], unit)}",
    )
    for index, row in enumerate(shown):
        _add(found, row, _across(index, len(shown)), axis)
    for index, row in enumerate(shown):
        if row["change_ratio"] is not None and index:
            _add_change(found, row, index, len(shown))
    return found


def _add(found: Course, row: Row, at: str, axis: Axis) -> None:
    versions = f"Keras {row['keras_version']}, {row['backend']} {row['backend_version']}"
    figure = f"{quantity(row['step_time_s'], axis.unit)}, {plural(row['processes'], 'process', 'processes')}"
    tip = f"{row['run_id']}: {figure}; {versions}"
    found.marks.append(Mark(at, _height(row["step_time_s"], axis), found.slot, tip))
    if row["low"] and row["high"]:
        found.whiskers.append(Stroke(at, at, _height(row["high"], axis), _height(row["low"], axis), found.slot))


def _add_change(found: Course, row: Row, index: int, count: int) -> None:
    at, late = _across(index - 0.5, count), index > 0.8 * count
    size = f"{row['change_ratio'] - 1:+.1%}"
    word = Word(at, 9 + 15 * (len(found.changes) % 2), size, *(("end", -5) if late else ("start", 5)))
    found.changes.append((word, str(row["change_verdict"]), at))
    why = row["change_note"] or row["change_look"] or ""
    found.words.append(f"{row['day']}: {size}, {row['change_verdict']}: {why}")


def _across(index: float, count: int) -> str:
    part = index / (count - 1) if count > 1 else 0.5
    return f"{EDGE + min(1.0, max(0.0, part)) * (100 - 2 * EDGE):.2f}%"


def _height(value: float, axis: Axis, height: int = HEIGHT) -> float:
    return _up(axis.share(value), height)


def _up(percent: float, height: int) -> float:
    """Return how far below the top a share of the axis lies, room for the changes' labels kept free."""
    free = 30
    return round(free + (height - free) * (1 - percent / 100), 1)


def _dates(rows: Sequence[Row]) -> list[Word]:
    step = max(1, -(-(len(rows) - 1) // (MOST_DATES - 1)))
    found = []
    for index in range(0, len(rows), step):
        at = float(_across(index, len(rows)).rstrip("%"))
        anchor = "start" if at < 8 else "end" if at > 92 else "middle"
        found.append(Word(f"{at:.2f}%", 14, str(rows[index]["day"]), anchor))
    return found


def field_of(rows: Sequence[Row]) -> Field:
    """Return the cells under their roofs, and in words; without points where no cell's intensity is known."""
    told = [_line(row) for row in rows if row["achieved_flop_per_s"]]
    known = [row for row in rows if row["intensity_flop_per_byte"] and row["achieved_flop_per_s"]]
    if not known:
        return Field(None, FIELD_HEIGHT, [], "", lines=told)
    rates = [v for row in known for v in (row["achieved_flop_per_s"], row["roof_flop_per_s"]) if v]
    unit = unit_for(rates, FLOP_UNITS)
    across = axes.logarithmic(
        [row["intensity_flop_per_byte"] for row in known], "intensity, FLOP/B (logarithmic)", INTENSITY, 4.0
    )
    up = axes.logarithmic(rates, f"{unit.name} (logarithmic)", unit, 4.0)
    heights = [(_up(float(tick.at.rstrip("%")), FIELD_HEIGHT), tick.label) for tick in up.ticks()]
    found = Field(across, FIELD_HEIGHT, heights, up.title, lines=told)
    for row in known:
        _add_point(found, row, across, up)
    return found


def _line(row: Row) -> tuple[str, str, str, int]:
    rate = row["achieved_flop_per_s"]
    figure = quantity(rate, unit_for([rate], FLOP_UNITS))
    return str(row["work"]), str(row["backend"]), f"{figure}, {_of_peak(row)}", slot_of(str(row["backend"]))


def _of_peak(row: Row) -> str:
    if row["share_of_peak"] is None:
        return "peak not known"
    mfu = "" if row["mfu"] is None else f", MFU {share(row['mfu'])}"
    return f"{share(row['share_of_peak'])} of the peak{mfu}"


def _add_point(found: Field, row: Row, across: Axis, up: Axis) -> None:
    slot, at = slot_of(str(row["backend"])), across.place(row["intensity_flop_per_byte"])
    y = _height(row["achieved_flop_per_s"], up, FIELD_HEIGHT)
    if row["roof_flop_per_s"]:
        found.bars.append(Stroke(at, at, y, _height(row["roof_flop_per_s"], up, FIELD_HEIGHT), slot))
    figure = quantity(row["achieved_flop_per_s"], up.unit)
    found.marks.append(Mark(at, y, slot, f"{row['work']} on {row['backend']}: {figure}, {_of_peak(row)}"))
