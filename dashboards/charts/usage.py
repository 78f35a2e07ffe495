"""What processes used over time, as curves: host memory; memory, utilisation and power of a device where it has them.

One picture a piece of work and quantity, one lane a backend, one curve a process. Across is the time a process worked,
its rests left out; up is from zero to the largest value of the row. Knows nothing of HTML; a curve's places are in
units of its own drawing, `WIDTH` by `HEIGHT`, which the page stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from keras_matrix.analysis.comparison.table import CellSummary, Row
from keras_matrix.dashboards.charts import axes
from keras_matrix.dashboards.charts.axes import EDGE, Axis
from keras_matrix.dashboards.charts.dot_plots import slot_of
from keras_matrix.dashboards.charts.format import (
    DASH,
    MEMORY_UNITS,
    SECOND,
    Unit,
    memory,
    number,
    plural,
    quantity,
    unit_for,
)
from keras_matrix.records.instruments.usage import MemoryUse, PowerUse, ShareUse, Usage, UsageSeries
from keras_matrix.records.schema import Record

WIDTH, HEIGHT = 1000, 100
LANE_HEIGHT, MARGIN = 76, 6
MOST_CURVES, MOST_PLACES, MOST_WORKS = 6, 150, 40
PERCENT = Unit("%", 0.01)
WATT = Unit("W", 1.0)
Courses = Mapping[tuple[str, int, int], UsageSeries]
Values = Sequence[int | float | None]


@dataclass(frozen=True, slots=True)
class Curve:
    """One process's values: the path as SVG writes it, and what it tells on hovering."""

    path: str
    tip: str


@dataclass(frozen=True, slots=True)
class KeptEpoch:
    """Where a kept epoch lies, over the lane's whole height, and what it tells on hovering."""

    at: str
    width: str
    tip: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One backend's curves. `heights` are the lines drawn across, each with its label."""

    backend: str
    slot: int
    figure: str
    notes: list[str]
    summary: str
    heights: list[tuple[float, str]]
    curves: list[Curve] = field(default_factory=list)
    epochs: list[KeptEpoch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Picture:
    """One quantity of one piece of work."""

    title: str
    quantity: str
    axis: Axis
    lanes: list[Lane]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A quantity that is drawn: its words, its column of a course, its unit (None: of memory), its figures in words."""

    words: str
    values: Callable[[UsageSeries], Values]
    unit: Unit | None
    peak: Callable[[Usage], str | None]
    notes: Callable[[Usage], list[str]]


def pictures(rows: Sequence[Row], usage_series: Courses) -> list[Picture]:
    """Return the pictures of these rows, of the first `MOST_WORKS` of them."""
    known = {
        drawn.words: {key: course for key, course in usage_series.items() if drawn.values(course)} for drawn in DRAWN
    }
    found = (_picture(row, drawn, known[drawn.words]) for row in rows[:MOST_WORKS] for drawn in DRAWN)
    return [one for one in found if one]


def left_out(rows: Sequence[Row], usage_series: Courses) -> str | None:
    """Return in a line which rows have curves and no picture, None where all have one."""
    count = sum(any(_known(cell, usage_series) for cell in row.cells.values()) for row in rows[MOST_WORKS:])
    return f"{plural(count, 'more piece', 'more pieces')} of work left out; the records have all" if count else None


def _picture(row: Row, drawn: Drawn, usage_series: Courses) -> Picture | None:
    known = {backend: _known(cell, usage_series) for backend, cell in row.cells.items()}
    several = [course for found in known.values() for _, course in found[:MOST_CURVES]]
    if not several:
        return None
    across = axes.from_zero([max(c.times_s[-1], 1e-3) for c in several], "time the process worked, s", SECOND)
    most = max(value for course in several for value in drawn.values(course) if value is not None)
    up = axes.from_zero([most or 1.0], drawn.words, drawn.unit or unit_for([most], MEMORY_UNITS))
    lanes = [_lane(backend, known[backend], drawn, (across, up)) for backend in row.cells if known[backend]]
    return Picture(row.title, f"{drawn.words}, {up.unit.name}", across, lanes)


def _known(cell: CellSummary, usage_series: Courses) -> list[tuple[Record, UsageSeries]]:
    return [
        (record, usage_series[record.key]) for record in cell.records if record.usage and record.key in usage_series
    ]


def _lane(backend: str, known: Sequence[tuple[Record, UsageSeries]], drawn: Drawn, scales: tuple[Axis, Axis]) -> Lane:
    (across, up), shown = scales, known[:MOST_CURVES]
    first = shown[0][0].usage
    peak, notes = (drawn.peak(first) or DASH, drawn.notes(first)) if first else (DASH, [])
    if len(shown) < len(known):
        notes = [*notes, f"the first {len(shown)} of {plural(len(known), 'process', 'processes')}"]
    found = Lane(
        backend,
        slot_of(backend),
        peak,
        notes,
        f"{backend}, {drawn.words}: peak {peak}; {', '.join(notes)}",
        [(_height(float(tick.at.rstrip("%"))), tick.label) for tick in up.ticks()[:: max(1, len(up.ticks()) // 2)]],
    )
    for record, course in shown:
        tip = f"{backend}, repeat {record.repeat + 1}: peak {drawn.peak(record.usage) if record.usage else DASH}"
        found.curves.append(Curve(_path(course.times_s, drawn.values(course), across, up), tip))
    for begun_s, ended_s in shown[0][1].epochs_s:
        width = across.share(ended_s) - across.share(begun_s)
        tip = f"a kept epoch, {quantity(ended_s - begun_s, SECOND)}"
        found.epochs.append(KeptEpoch(across.place(begun_s), f"{max(width, 0.1):.2f}%", tip))
    return found


def _height(share: float) -> float:
    """Return how far below the lane's top a share of the upright axis lies, in pixels."""
    inner = (share - EDGE) / (100 - 2 * EDGE)
    return round(MARGIN + (1 - inner) * (LANE_HEIGHT - 2 * MARGIN), 1)


def _path(times_s: Sequence[float], values: Values, across: Axis, up: Axis) -> str:
    """Return a curve through the values; where one is missing it breaks off."""
    step = -(-len(times_s) // MOST_PLACES)
    parts: list[list[tuple[str, str]]] = [[]]
    for index in range(0, len(times_s), step):
        known = [value for value in values[index : index + step] if value is not None]
        if not known:
            parts.append([])
            continue
        x = across.share(times_s[index]) * WIDTH / 100
        y = (1 - (up.share(max(known)) - EDGE) / (100 - 2 * EDGE)) * HEIGHT
        parts[-1].append((f"{x:.0f}", f"{y:.1f}"))
    return "".join("M" + "L".join(map(" ".join, _bends(part))) for part in parts if part)


def _bends(part: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the points of a curve less those within a level stretch, which show nothing: memory is level mostly."""
    threes = zip(part, part[1:], part[2:], strict=False)
    inner = [here for before, here, after in threes if not before[1] == here[1] == after[1]]
    return [part[0], *inner, *part[1:][-1:]]


def _memory_peak(used: MemoryUse | None) -> str | None:
    return memory(used.peak_bytes) if used and used.peak_bytes is not None else None


def _memory_notes(used: MemoryUse | None) -> list[str]:
    if used is None:
        return []
    unit = unit_for([used.max_bytes], MEMORY_UNITS)
    return [f"mean {quantity(used.mean_bytes, unit)}", f"deviation {quantity(used.std_bytes, unit)}"]


def _host_notes(used: Usage) -> list[str]:
    told = _memory_notes(used.host_anonymous)
    shared = [size for size in used.host_proportional_bytes if size is not None]
    return [*told, f"proportional {memory(shared[-1])}"] if shared else told


def _device_notes(used: Usage) -> list[str]:
    told = _memory_notes(used.device_memory)
    own = used.device_process_memory
    notes = [*told, f"of its own {memory(own.max_bytes)}"] if own else told
    total = used.devices_memory
    return [*notes, f"{used.devices} GPUs together {memory(total.max_bytes)}"] if total else notes


def _share_notes(used: ShareUse | None) -> list[str]:
    return [f"mean {quantity(used.mean_share, PERCENT)}"] if used else []


def _power_notes(used: Usage) -> list[str]:
    notes = []
    if used.device_average_power_w is not None:
        of = f" of {used.devices} GPUs" if (used.devices or 1) > 1 else ""
        notes.append(f"energy over time{of} {quantity(used.device_average_power_w, WATT)}")
    if used.device_power:
        source = {"instant": " (instantaneous)", "power_usage": " (averages over up to 1 s)"}
        samples = source.get(used.device_power_source or "", "")
        notes.append(f"mean of samples {quantity(used.device_power.mean_w, WATT)}{samples}")
    return [*notes, f"{number(used.samples_per_j)} samples/J"] if used.samples_per_j is not None else notes


def _most_share(used: ShareUse | None) -> str | None:
    return quantity(used.max_share, PERCENT) if used else None


def _most_power(used: PowerUse | None) -> str | None:
    return quantity(used.max_w, WATT) if used else None


DRAWN = (
    Drawn(
        "anonymous host memory",
        lambda course: course.host_anonymous_bytes,
        None,
        lambda used: _memory_peak(used.host_anonymous),
        _host_notes,
    ),
    Drawn(
        "memory reserved on the device",
        lambda course: course.device_memory_bytes,
        None,
        lambda used: _memory_peak(used.device_memory),
        _device_notes,
    ),
    Drawn(
        "device utilisation",
        lambda course: course.device_utilisation_share,
        PERCENT,
        lambda used: _most_share(used.device_utilisation),
        lambda used: _share_notes(used.device_utilisation),
    ),
    Drawn(
        "device power",
        lambda course: course.device_power_w,
        WATT,
        lambda used: _most_power(used.device_power),
        _power_notes,
    ),
)
