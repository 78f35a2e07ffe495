"""Panels of lanes: one line a backend on one axis, from the rows of a question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from dashboards import axes
from dashboards.axes import Axis
from dashboards.dot_plots import (
    MIDDLE,
    Interval,
    Lane,
    Mark,
    Picture,
    Word,
    alone,
    memory_lane,
    slot_of,
    start_lane,
)
from dashboards.format import (
    MEMORY_UNITS,
    SECOND,
    Unit,
    interval,
    memory,
    number,
    plural,
    share,
    unit_for,
)

Row = Mapping[str, Any]
RATIO = Unit("×", 1.0)
PERCENT = Unit("%", 0.01)


def comparisons(rows: Sequence[Row]) -> list[Picture]:
    """Return one picture a piece of work: how much longer a step takes than on the quickest backend."""
    ends = [value for row in rows for value in (row["low"], row["ratio"], row["high"]) if value]
    if not ends:
        return []
    axis = axes.logarithmic([1.0, *ends], "time per step against the quickest, × (logarithmic)", RATIO)
    return [_comparison(list(group), axis) for _, group in _by_work(rows)]


def starts(rows: Sequence[Row]) -> list[Picture]:
    """Return one picture a piece of work: the first epoch, hollow, against a steady one."""
    values = [v for row in rows for v in (row["first_epoch_time_s"], row["steady_epoch_time_s"]) if v]
    if not values:
        return []
    axis = axes.logarithmic(values, "time of an epoch, s (logarithmic)", SECOND)
    return [Picture(work, "", "", axis, [_start(row, axis) for row in group]) for work, group in _by_work(rows)]


def memories(rows: Sequence[Row]) -> list[Picture]:
    """Return one picture a piece of work: peaks on the host, filled, and on the device, hollow."""
    values = [v for row in rows for v in (row["host_bytes"], row["device_bytes"]) if v]
    if not values:
        return []
    unit = unit_for(values, MEMORY_UNITS)
    axis = axes.from_zero(values, f"peak memory of a process, {unit.name}", unit)
    device_unit = unit_for([row["device_bytes"] for row in rows if row["device_bytes"]], MEMORY_UNITS)
    lane = partial(_memory, device_unit)
    return [Picture(work, "", "", axis, [lane(row, axis) for row in group]) for work, group in _by_work(rows)]


def scalings(rows: Sequence[Row]) -> list[Picture]:
    """Return one picture a mode: the efficiency of workers, by backend, each mark named by how many workers."""
    known = [row for row in rows if row["efficiency"] is not None]
    if not known:
        return []
    ends = [value for row in known for value in (row["efficiency"], row["high"] or row["efficiency"])]
    axis = axes.from_zero([1.0, *ends], "throughput over one worker's times the workers, %", PERCENT)
    return [
        Picture(str(mode), "", "", axis, [_scaling(str(b), list(own), axis) for b, own in _by(group, "backend")])
        for mode, group in _by(known, "mode")
    ]


def _by_work(rows: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    groups = groupby(rows, lambda row: (row["work"], row["work_id"]))
    return [(str(key[0]), sorted(group, key=lambda row: slot_of(str(row["backend"])))) for key, group in groups]


def _by(rows: Iterable[Row], name: str) -> Iterable[tuple[Any, list[Row]]]:
    ordered = sorted(rows, key=lambda row: (slot_of(str(row[name])), str(row[name])))
    return [(key, list(group)) for key, group in groupby(ordered, lambda row: row[name])]


def _comparison(rows: Sequence[Row], axis: Axis) -> Picture:
    first = rows[0]
    quickest = str(first["against"])
    lanes = [_quickest(quickest, axis), *(_ratio(row, axis) for row in rows if row["ratio"])]
    details = " · ".join(str(part) for part in (first["verdict"], first["same_work"], first["caveats"]) if part)
    return Picture(str(first["work"]), details, str(first["verdict"]), axis, lanes)


def _quickest(backend: str, axis: Axis) -> Lane:
    slot = slot_of(backend)
    lane = Lane(backend, slot, None, "1", ["the quickest"], f"{backend}: the quickest")
    lane.marks.append(Mark(axis.place(1.0), MIDDLE, slot, f"{backend}: the others are divided by it"))
    return lane


def _ratio(row: Row, axis: Axis) -> Lane:
    backend, slot = str(row["backend"]), slot_of(str(row["backend"]))
    between = interval(row["low"], row["high"], row["ratio"]) or "no interval"
    figure = f"{number(row['ratio'])}×"
    notes = [between, plural(int(row["blocks"] or 0), "block")]
    found = Interval(row["ratio"], row["low"], row["high"])
    strokes, marks = found.drawn(axis, MIDDLE, slot, f"{backend}: {figure} ({between})")
    return Lane(backend, slot, None, figure, notes, f"{backend}: {figure}, {between}", marks, strokes)


def _start(row: Row, axis: Axis) -> Lane:
    return start_lane(str(row["backend"]), axis, alone(row["first_epoch_time_s"]), alone(row["steady_epoch_time_s"]))


def _memory(unit: Unit, row: Row, axis: Axis) -> Lane:
    device, notes = row["device_bytes"], []
    if row["anonymous_bytes"] is not None:
        notes.append(f"anonymous {memory(row['anonymous_bytes'])}")
    if row["device_power_w"] is not None:
        notes.append(f"{number(row['device_power_w'])} W")
    if row["samples_per_j"] is not None:
        notes.append(f"{number(row['samples_per_j'])} samples/J")
    missed = device is not None or row["device"] != "cpu"
    return memory_lane(
        str(row["backend"]), axis, alone(row["host_bytes"]), (alone(device), unit) if missed else None, notes
    )


def _scaling(backend: str, rows: Sequence[Row], axis: Axis) -> Lane:
    slot, most = slot_of(backend), max(rows, key=lambda row: int(row["workers"]))
    notes = [f"with {most['workers']} workers"]
    if most["communication_share"] is not None:
        notes.append(f"{share(max(0.0, most['communication_share']))} in communication")
    lane = Lane(
        backend, slot, 44, share(most["efficiency"]), notes, f"{backend}: {share(most['efficiency'])} {notes[0]}"
    )
    for row in rows:
        found = Interval(row["efficiency"], row["low"], row["high"])
        tip = f"{backend}, {row['workers']} workers: {share(row['efficiency'])}"
        strokes, marks = found.drawn(axis, 16, slot, tip)
        lane.strokes.extend(strokes)
        lane.marks.extend(marks)
        lane.words.append(Word(marks[0].at, 34, str(row["workers"]), "middle"))
    return lane
