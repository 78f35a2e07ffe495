"""JAX's and TensorFlow's own file, `*.xplane.pb`: planes (a host, a device), their lines (threads, streams), events.

The layout is that of `XSpace` in tsl/profiler/protobuf/xplane.proto. JAX's own reader is there only with JAX,
TensorFlow's only with TensorFlow, and neither hands out the programs that stand in a plane's metadata.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from records.traces.wire import Malformed, Value, fields, number, piece, real, signed, text, varint

METADATA_PLANE = "/host:metadata"
# Keys as they lie in a file: a field's number, three bits to the left, and what kind of a value follows.
EVENT = STAT = 4 << 3 | 2
NUMBERS = (0x18, 0x20)
# So many different statistics are remembered; names and numbers of programs are among the first.
MOST_KNOWN = 1 << 16


class Event(NamedTuple):
    """Something on a line. Times in nanoseconds of the profiler's own clock; `stats` are looked at when asked for."""

    name: str
    start_ns: float
    duration_ns: float
    kind: int
    raw_stats: list[bytes]


@dataclass(frozen=True, slots=True)
class Line:
    """A thread of a host or a stream of a device."""

    name: str
    number: int
    start_ns: int
    raw: memoryview
    plane: Plane

    def events(self, unwanted: Container[int] = ()) -> Iterator[Event]:
        """Yield the events, in the order of the file, but for those of kinds that are unwanted by then.

        Raises `IndexError` or `Malformed` where the file breaks off.
        """
        names, start_ns, data = self.plane.event_names, self.start_ns, bytes(self.raw)
        for at, end in _pieces(data, EVENT):
            if unwanted and _kind(data, at, end) in unwanted:
                continue
            kind, offset_ps, duration_ps, stats = _event(data, at, end)
            yield Event(names.get(kind, ""), start_ns + offset_ps / 1000, duration_ps / 1000, kind, stats)

    def holds(self, kinds: Container[int]) -> bool:
        """Return whether an event is of one of these kinds."""
        data = bytes(self.raw)
        return any(_kind(data, at, end) in kinds for at, end in _pieces(data, EVENT))


@dataclass(slots=True)
class Plane:
    """A host or a device, and the names its events and their statistics have."""

    name: str = ""
    lines: list[Line] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    event_stats: dict[int, tuple[memoryview, ...]] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    _known: dict[bytes, tuple[str, Any]] = field(default_factory=dict)
    _known_of_name: dict[int, dict[str, Any]] = field(default_factory=dict)

    def stats(self, event: Event) -> dict[str, Any]:
        """Return what is told of an event, and of all of its name."""
        known, found = self._known, self._of_name(event.kind).copy()
        for raw in event.raw_stats:
            name, value = known.get(raw) or self._remembered(raw)
            if name:
                found[name] = value
        return found

    def stat(self, event: Event, name: str) -> Any:
        """Return one thing that is told of an event itself; None where it is not."""
        for raw in event.raw_stats:
            if self._name_of(raw) == name:
                return self._stat(raw)[1]
        return None

    def own_stats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each name of an event and what is told of all events of that name."""
        for kind in self.event_stats:
            yield self.event_names.get(kind, ""), self._of_name(kind)

    def _name_of(self, raw: bytes) -> str:
        """Return what a statistic is called; its number comes first."""
        if raw[0] == 0x08 and raw[1] < 128:
            return self.stat_names.get(raw[1], "")
        return self._stat(raw)[0]

    def _of_name(self, kind: int) -> dict[str, Any]:
        if kind not in self._known_of_name:
            told = map(self._stat, self.event_stats.get(kind, ()))
            self._known_of_name[kind] = {name: value for name, value in told if name}
        return self._known_of_name[kind]

    def _remembered(self, raw: bytes) -> tuple[str, Any]:
        """Return what is told; most of it comes again, and is read once."""
        found = self._stat(raw)
        if len(self._known) < MOST_KNOWN:
            self._known[raw] = found
        return found

    def _stat(self, raw: bytes | memoryview) -> tuple[str, Any]:
        name, at, end = "", 0, len(raw)
        value: Any = None
        while at < end:
            key = raw[at]
            if key & 7 == 0:
                item, at = varint(raw, at + 1)
                if key == 0x08:
                    name = self.stat_names.get(item, "")
                elif key in NUMBERS:
                    value = signed(item) if key == 0x20 else item
                elif key == 0x38:
                    value = self.stat_names.get(item, "")
            else:
                value, at = _told(raw, at, end)
        return name, value


def _told(raw: bytes | memoryview, at: int, end: int) -> tuple[Any, int]:
    """Return what is told otherwise than by a whole number, and the place behind it."""
    key = raw[at]
    if key == 0x11:
        return real(raw[at + 1 : at + 9]), at + 9
    size, at = varint(raw, at + 1)
    if key & 7 != 2 or at + size > end:
        raise Malformed("a statistic breaks off, or is of an unknown kind")
    told = raw[at : at + size]
    return (str(told, "utf-8", "replace") if key == 0x2A else memoryview(told)), at + size


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
    for key, value in fields(data):
        if key != EVENT >> 3:
            named[key] = value
    name = text(named[11]) if 11 in named else text(named[2]) if 2 in named else ""
    return Line(name, number(named.get(1, 0)), number(named.get(3, 0)), data, plane)


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


# For there are millions of events, `fields` is written out for them.


def _pieces(data: bytes, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield where each piece with that key lies, and what is behind it."""
    at, end = 0, len(data)
    while at < end:
        key, value = data[at], data[at + 1]
        at += 2
        if value > 127:
            value, at = varint(data, at - 1)
        if key & 7 == 2:
            begin, at = at, at + value
            if at > end:
                raise Malformed("a message breaks off")
            if key == wanted:
                yield begin, at
        elif key & 7:
            raise Malformed("a line has a field that is neither a number nor a piece")


def _kind(data: bytes, at: int, end: int) -> int:
    """Return an event's kind, which its profiler writes first and leaves out where it is zero."""
    if at >= end or data[at] != 0x08:
        return _event(data, at, end)[0]
    low = data[at + 1]
    return low if low < 128 else varint(data, at + 1)[0]


def _event(data: bytes, at: int, end: int) -> tuple[int, int, int, list[bytes]]:
    """Return kind, offset and duration in picoseconds, and statistics."""
    kind = offset_ps = duration_ps = 0
    stats: list[bytes] = []
    while at < end:
        key, value = data[at], data[at + 1]
        at += 2
        if value > 127:
            value, at = varint(data, at - 1)
        if key == STAT:
            stats.append(data[at : at + value])
            at += value
        elif key == 0x08:
            kind = value
        elif key == 0x10:
            offset_ps = value
        elif key == 0x18:
            duration_ps = value
        elif key & 7:
            raise Malformed("an event has a field that is no number")
    if at > end:
        raise Malformed("an event breaks off")
    return kind, signed(offset_ps), duration_ps, stats
