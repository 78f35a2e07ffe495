"""JAX's and TensorFlow's own file, `*.xplane.pb`: planes (a host, a device), their lines (threads, streams), events.

The layout is that of `XSpace` in tsl/profiler/protobuf/xplane.proto. JAX's own reader is there only with JAX,
TensorFlow's only with TensorFlow, and neither hands out the programs that stand in a plane's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from records.traces.wire import Value, fields, number, piece, real, signed, text, varint

METADATA_PLANE = "/host:metadata"


class Event(NamedTuple):
    """Something on a line. Times in nanoseconds of the profiler's own clock; `stats` are looked at when asked for."""

    name: str
    start_ns: float
    duration_ns: float
    kind: int
    raw_stats: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A thread of a host or a stream of a device."""

    name: str
    number: int
    start_ns: int
    raw_events: list[memoryview]
    plane: Plane

    def events(self) -> Iterator[Event]:
        """Yield the events, in the order of the file."""
        names = self.plane.event_names
        for raw in self.raw_events:
            kind, offset_ps, duration_ps, stats = _event(raw)
            yield Event(names.get(kind, ""), self.start_ns + offset_ps / 1000, duration_ps / 1000, kind, stats)


@dataclass(slots=True)
class Plane:
    """A host or a device, and the names its events and their statistics have."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    event_stats: dict[int, tuple[memoryview, ...]] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)

    def stats(self, event: Event) -> dict[str, Any]:
        """Return what is told of an event, and of all of its name."""
        return self._told(self.event_stats.get(event.kind, ())) | self._told(event.raw_stats)

    def own_stats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each name of an event and what is told of all events of that name."""
        for kind, stats in self.event_stats.items():
            yield self.event_names.get(kind, ""), self._told(stats)

    def _told(self, stats: tuple[memoryview, ...]) -> dict[str, Any]:
        return {name: value for name, value in map(self._stat, stats) if name}

    def _stat(self, raw: memoryview) -> tuple[str, Any]:
        name, value = "", None
        for key, item in fields(raw):
            if key == 1:
                name = self.stat_names.get(number(item), "")
            elif key in STATS:
                value = STATS[key](item)
            elif key == 7:
                value = self.stat_names.get(number(item), "")
        return name, value


STATS: dict[int, Any] = {
    2: lambda value: real(number(value)),
    3: number,
    4: lambda value: signed(number(value)),
    5: text,
    6: piece,
}


def planes(data: bytes) -> Iterator[Plane]:
    """Yield the planes of a file. Raises `IndexError` or `ValueError` where it is none."""
    for key, value in fields(memoryview(data)):
        if key == 1:
            yield _plane(piece(value))


def _plane(data: memoryview) -> Plane:
    plane = Plane()
    for key, value in fields(data):
        if key == 2:
            plane.name = text(value)
        elif key == 3:
            plane.lines.append(_line(piece(value), plane))
        elif key == 4:
            _name_event(piece(value), plane)
        elif key == 5:
            kind, told = _entry(piece(value))
            plane.stat_names[kind] = next((text(item) for name, item in fields(told) if name == 2), "")
    return plane


def _line(data: memoryview, plane: Plane) -> Line:
    named: dict[int, Value] = {}
    events: list[memoryview] = []
    for key, value in fields(data):
        if key == 4:
            events.append(piece(value))
        else:
            named[key] = value
    name = text(named[11]) if 11 in named else text(named[2]) if 2 in named else ""
    return Line(name, number(named.get(1, 0)), number(named.get(3, 0)), events, plane)


def _name_event(data: memoryview, plane: Plane) -> None:
    kind, told = _entry(data)
    stats: list[memoryview] = []
    for key, value in fields(told):
        if key == 2:
            plane.event_names[kind] = text(value)
        elif key == 5:
            stats.append(piece(value))
    if stats:
        plane.event_stats[kind] = tuple(stats)


def _entry(data: memoryview) -> tuple[int, memoryview]:
    """Return key and value of an entry of a map."""
    found = dict(fields(data))
    return number(found.get(1, 0)), piece(found.get(2, memoryview(b"")))


def _event(data: memoryview) -> tuple[int, int, int, tuple[memoryview, ...]]:
    """Return kind, offset and duration in picoseconds, and statistics: `fields` written out, for there are millions."""
    kind = offset_ps = duration_ps = at = 0
    stats: list[memoryview] = []
    end = len(data)
    while at < end:
        key = data[at]
        at += 1
        if key == 0x22:  # a statistic
            size, at = varint(data, at)
            stats.append(data[at : at + size])
            at += size
            continue
        value, at = varint(data, at)
        if key == 0x08:
            kind = value
        elif key == 0x10:
            offset_ps = value
        elif key == 0x18:
            duration_ps = value
        elif key & 7:
            raise ValueError("an event has a field that is no number")
    return kind, signed(offset_ps), duration_ps, tuple(stats)
