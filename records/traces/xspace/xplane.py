"""JAX's and TensorFlow's own file, `*.xplane.pb`: planes (a host, a device), their lines (threads, streams), events.

The layout is that of `XSpace` in tsl/profiler/protobuf/xplane.proto. JAX's own reader requires JAX, TensorFlow's
requires TensorFlow, and neither returns the programs in a plane's metadata. The events of a line, up to millions, are
read together as columns: with the classes that protoc generates the same figures take 2.5 times the CPU time and 5
times the memory (`lab/run traces readers`, docs/traces.md), and protobuf would become a requirement of `records`.

The first fields of all messages are read together, then the second ones, and so on: as many iterations as the
longest message has fields.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.protobuf import (
    FIXED_BYTES,
    MOST_BITS,
    Malformed,
    fields,
    number,
    passed,
    piece,
    real,
    signed,
    text,
    varint,
)

ERRORS, WARNINGS = 2, 3  # fields of XSpace
METADATA_PLANE = "/host:metadata"
# Keys as in the file: a field's number, shifted left by three bits, and the kind of its value.
EVENT = STAT = 4 << 3 | 2
KIND, OFFSET, DURATION = 0x08, 0x10, 0x18
WHOLE, SIGNED, NAMED = 0x18, 0x20, 0x38
REAL, TEXT, BYTES = 0x11, 0x2A, 0x32
VALUES = (WHOLE, SIGNED, NAMED, REAL, TEXT, BYTES)
# Maximum start of a line in nanoseconds: sums and differences of such times fit in 64 bits.
MOST_NS = 1 << 61
UNTOLD = -1
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]
# Zeros after the last byte: any truncated number ends there.
PADDING = 16
PIECE = 2
KINDS = frozenset({0, PIECE, *FIXED_BYTES})


class PlaneEvent(NamedTuple):
    """An event of a line, with its own statistics and those of its name. Times are the profiler's own nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    kind: int
    stats: dict[str, Any]


@dataclass(slots=True)
class Plane:
    """A host or a device, and the names of its events and their statistics."""

    name: str = ""
    lines: list[PlaneLine] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    event_stats: dict[int, tuple[memoryview, ...]] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    _known: dict[int, dict[str, Any]] = field(default_factory=dict)

    def stats_of(self, kind: int) -> dict[str, Any]:
        """Return the statistics of all events of that kind."""
        if kind not in self._known:
            stats = map(self.stat, self.event_stats.get(kind, ()))
            self._known[kind] = {name: value for name, value in stats if name}
        return self._known[kind]

    def own_stats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each event name, with the statistics of all events of that name."""
        for kind in self.event_stats:
            yield self.event_names.get(kind, ""), self.stats_of(kind)

    def stat(self, data: memoryview) -> tuple[str, Any]:
        """Return a statistic's name, empty if it is missing, and its value. Raises `IndexError` or `Malformed`."""
        name, offset, end = "", 0, len(data)
        value: Any = None
        while offset < end:
            key = data[offset]
            if key == KIND:
                kind, offset = varint(data, offset + 1)
                name = self.stat_names.get(kind, "")
            elif key in (WHOLE, SIGNED, NAMED):
                item, offset = varint(data, offset + 1)
                value = self.stat_names.get(item, "") if key == NAMED else signed(item) if key == SIGNED else item
            elif key in (TEXT, BYTES):
                piece_bytes, begin = varint(data, offset + 1)
                offset = begin + piece_bytes
                value = text(data[begin:offset]) if key == TEXT else data[begin:offset]
            elif key == REAL:
                value, offset = real(data[offset + 1 : offset + 9]), offset + 9
            else:
                offset = passed(data, offset)
        if offset > end:
            raise Malformed("a statistic is truncated")
        return name, value


@dataclass(frozen=True, slots=True)
class PlaneLine:
    """A thread of a host or a stream of a device; its events are in `data` from `begins` to `ends`."""

    name: str
    number: int
    start_ns: int
    data: memoryview
    begins: Places
    ends: Places
    plane: Plane

    def kinds(self) -> Places:
        """Return the kind of each event, in the order of the file. Raises `Malformed` if one is truncated."""
        data = padded(self.data)
        kinds = np.zeros(self.begins.size, np.int64)
        # A profiler writes it first, and omits it if it is zero.
        kind_is_first = (data[self.begins] == KIND) & (self.begins < self.ends)
        places = np.flatnonzero(kind_is_first)
        value, next_offsets = varints(data, self.begins[places] + 1)
        if (next_offsets > self.ends[places]).any():
            raise Malformed("an event is truncated")
        kinds[places] = value.astype(np.int64)
        remaining = np.flatnonzero(~kind_is_first)
        for batch in event_fields(data, self.begins[remaining], self.ends[remaining]):
            positions = np.flatnonzero(batch.key == KIND)
            kinds[remaining[batch.message[positions]]] = batch.value[positions].astype(np.int64)
        return kinds

    def events(self, positions: Places | None = None) -> Events:
        """Return the events of the line at these places, by default all. Raises `Malformed` if one is truncated."""
        begins, ends = (self.begins, self.ends) if positions is None else (self.begins[positions], self.ends[positions])
        return Events(self, padded(self.data), begins, ends)


class Events:
    """Events of a line, as columns. Times are integer nanoseconds of the profiler's own clock."""

    kinds: Places
    start_ns: Places
    end_ns: Places

    def __init__(self, line: PlaneLine, data: Bytes, begins: Places, ends: Places) -> None:
        """Read everything except the statistics' content. Raises `Malformed` if an event is truncated."""
        self._line, self._data = line, data
        arrays = {key: np.zeros(begins.size, np.int64) for key in (KIND, OFFSET, DURATION)}
        stats = [(np.zeros(0, np.int64),) * 3]
        for batch in event_fields(data, begins, ends):
            for key, column in arrays.items():
                matching = batch.key == key
                column[batch.message[matching]] = batch.value[matching].astype(np.int64)
            matching = batch.key == STAT
            if matching.any():
                stats.append((batch.message[matching], batch.value[matching].astype(np.int64), batch.end[matching]))
        self.kinds, offset_ps = arrays[KIND], arrays[OFFSET]
        self.start_ns = line.start_ns + _ns(offset_ps)
        self.end_ns = line.start_ns + _ns(offset_ps + arrays[DURATION].clip(0).astype(np.float64))
        self._owners, self._begins, self._ends = map(np.concatenate, zip(*stats, strict=True))
        self._columns_of_stats: _Stats | None = None

    def __len__(self) -> int:
        """Return the number of events."""
        return self.kinds.size

    def __iter__(self) -> Iterator[PlaneEvent]:
        """Yield them one by one. Raises `IndexError` or `Malformed` if a statistic is truncated."""
        plane, data = self._line.plane, self._line.data
        stats_by_event: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for owner, begin, end in zip(self._owners.tolist(), self._begins.tolist(), self._ends.tolist(), strict=True):
            name, value = plane.stat(data[begin:end])
            if name:
                stats_by_event[owner][name] = value
        rows = zip(self.kinds.tolist(), self.start_ns.tolist(), self.end_ns.tolist(), stats_by_event, strict=True)
        for kind, start_ns, end_ns, stats in rows:
            yield PlaneEvent(plane.event_names.get(kind, ""), start_ns, end_ns, kind, plane.stats_of(kind) | stats)

    def numbers(self, name: str) -> tuple[Places, NDArray[np.bool_]]:
        """Return each event's integer statistic with that name, 0 if it is missing, and which events have it."""
        values, inverse = self._of_kinds(name)
        if not all(value is None or isinstance(value, int) for value in values):
            raise Malformed(f"{name} of an event is not an integer")
        numbers = np.array([signed(value or 0) for value in values], np.int64)[inverse]
        is_known = np.array([value is not None for value in values], np.bool_)[inverse]
        stats = self._stats()
        positions = stats.named(self._line.plane, name)
        if not np.isin(stats.key[positions], (WHOLE, SIGNED)).all():
            raise Malformed(f"{name} of an event is not an integer")
        numbers[self._owners[positions]], is_known[self._owners[positions]] = (
            stats.value[positions].astype(np.int64),
            True,
        )
        return numbers, is_known

    def words(self, name: str) -> tuple[Places, Sequence[str]]:
        """Return the index of each event's text statistic with that name, `UNTOLD` if missing, and the texts."""
        word_numbers: dict[str, int] = {}
        values, inverse = self._of_kinds(name)
        numbers = [UNTOLD if value is None else _number_of(word_numbers, value) for value in values]
        event_codes = np.array(numbers, np.int64)[inverse]
        stats, names = self._stats(), self._line.plane.stat_names
        positions = stats.named(self._line.plane, name)
        key, value, end = stats.key[positions], stats.value[positions], stats.end[positions]
        codes = np.full(positions.size, UNTOLD)
        numbered = np.flatnonzero(key == NAMED)
        distinct, inverse = np.unique(value[numbered], return_inverse=True)
        codes[numbered] = np.array(
            [_number_of(word_numbers, names.get(name_id, "")) for name_id in distinct.tolist()], np.int64
        )[inverse]
        for index in np.flatnonzero(key != NAMED).tolist():
            is_text = key[index] == TEXT
            codes[index] = _number_of(
                word_numbers, text(self._line.data[int(value[index]) : end[index]]) if is_text else None
            )
        event_codes[self._owners[positions]] = codes
        return event_codes, list(word_numbers)

    def _stats(self) -> _Stats:
        if self._columns_of_stats is None:
            self._columns_of_stats = _stats(self._data, self._begins, self._ends)
        return self._columns_of_stats

    def _of_kinds(self, name: str) -> tuple[list[Any], Places]:
        """Return the values of a statistic that applies to all events of a kind, and the index of each event's."""
        plane = self._line.plane
        if not plane.event_stats:
            return [None], np.zeros(len(self), np.int64)
        kinds, inverse = np.unique(self.kinds, return_inverse=True)
        return [plane.stats_of(kind).get(name) for kind in kinds.tolist()], inverse


class _Stats(NamedTuple):
    """Statistics: the number of the name of each, the key of its value, and the value as in `columns.Fields`."""

    kind: Places
    key: Places
    value: Places
    end: Places

    def named(self, plane: Plane, name: str) -> Places:
        """Return which of them have that name and a value."""
        numbers = [number for number, stat_name in plane.stat_names.items() if stat_name == name]
        return np.flatnonzero(np.isin(self.kind, numbers) & (self.key != 0))


def planes(data: bytes) -> Iterator[Plane]:
    """Yield the planes of a file. Raises `IndexError` or `ValueError` for an invalid file."""
    for key, value in fields(memoryview(data)):
        if key == 1:
            yield _plane(piece(value))


def messages(data: bytes) -> list[str]:
    """Return the profiler's own errors and warnings, such as about dropped events. Raises like `planes`."""
    return [text(value) for key, value in fields(memoryview(data)) if key in (ERRORS, WARNINGS)]


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
            kind, entry = _entry(piece(value))
            plane.stat_names[kind] = next((text(item) for name, item in fields(entry) if name == 2), "")
    return plane


def _line(data: memoryview, plane: Plane) -> PlaneLine:
    begins, ends, others = _pieces(bytes(data))
    field_by_number = {key: value for begin, end in others for key, value in fields(data[begin:end])}
    name = (
        text(field_by_number[11]) if 11 in field_by_number else text(field_by_number[2]) if 2 in field_by_number else ""
    )
    start_ns = signed(number(field_by_number.get(3, 0)))
    if abs(start_ns) > MOST_NS:
        raise Malformed(f"a line begins at {start_ns} ns")
    return PlaneLine(name, number(field_by_number.get(1, 0)), start_ns, data, begins, ends, plane)


def _name_event(data: memoryview, plane: Plane) -> None:
    kind, entry = _entry(data)
    stats: list[memoryview] = []
    for key, value in fields(entry):
        if key == 2:
            plane.event_names[kind] = text(value)
        elif key == 5:
            stats.append(piece(value))
    if stats:
        plane.event_stats[kind] = tuple(stats)


def _entry(data: memoryview) -> tuple[int, memoryview]:
    """Return key and value of an entry of a map."""
    members = dict(fields(data))
    return number(members.get(1, 0)), piece(members.get(2, memoryview(b"")))


def _pieces(data: bytes) -> tuple[Places, Places, list[tuple[int, int]]]:
    """Return the begins and ends of a line's events, and of its other fields.

    An inlined `wire.fields`: the position of an event is known only from the previous one.
    """
    begins, ends, others = array("q"), array("q"), []
    add_begin, add_end = begins.append, ends.append
    offset, end = 0, len(data)
    while offset < end:
        if data[offset] != EVENT:
            others.append((offset, offset := passed(data, offset)))
            continue
        size = data[offset + 1]
        offset += 2
        if size > 127:
            size, offset = varint(data, offset - 1)
        add_begin(offset)
        offset += size
        add_end(offset)
    if offset > end:
        raise Malformed("a message is truncated")
    return np.frombuffer(begins, np.int64), np.frombuffer(ends, np.int64), others


def _stats(data: Bytes, begins: Places, ends: Places) -> _Stats:
    stats = _Stats(*(np.zeros(begins.size, np.int64) for _ in _Stats._fields))
    for batch in event_fields(data, begins, ends):
        is_kind = batch.key == KIND
        indices = batch.message[is_kind]
        stats.kind[indices] = batch.value[is_kind].astype(np.int64)
        is_value = np.isin(batch.key, VALUES)
        indices = batch.message[is_value]
        stats.key[indices] = batch.key[is_value].astype(np.int64)
        stats.value[indices] = batch.value[is_value].astype(np.int64)
        stats.end[indices] = batch.end[is_value]
    return stats


def _ns(ps: NDArray[Any]) -> Places:
    return np.rint(ps / 1000).astype(np.int64)


def _number_of(word_numbers: dict[str, int], word: Any) -> int:
    """Return the index of a word, which is added if it is new. Raises `Malformed` for other values."""
    if not isinstance(word, str):
        raise Malformed("a name of an event is not text")
    return word_numbers.setdefault(word, len(word_numbers))


class Fields(NamedTuple):
    """One field of each of some messages: the message, the field's key, its value, and its end.

    `key` is the field's number, shifted left by three bits, and its kind. `value` is a number of variable length, or
    the position where any other value begins.
    """

    message: Places
    key: Numbers
    value: Numbers
    end: Places


def padded(data: bytes | memoryview) -> Bytes:
    """Return a copy of these bytes with padding for `fields`."""
    buffer = np.zeros(len(data) + PADDING, np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def event_fields(data: Bytes, begins: Places, ends: Places) -> Iterator[Fields]:
    """Yield the first fields of the messages at these positions, then the second ones, until all are read.

    `data` is `padded`. Raises `Malformed` for a truncated message, or a field of an unknown kind.
    """
    message = np.flatnonzero(begins < ends)
    offsets, end = begins[message], ends[message]
    while message.size:
        key, offsets = varints(data, offsets)
        kind = (key & np.uint64(7)).astype(np.uint8)
        if kind.any():
            value, offsets = _values(data, offsets, kind, end)
        else:
            value, offsets = varints(data, offsets)
        if (offsets > end).any():
            raise Malformed("a message is truncated")
        yield Fields(message, key, value, offsets)
        is_unfinished = offsets < end
        if not is_unfinished.all():
            message, offsets, end = message[is_unfinished], offsets[is_unfinished], end[is_unfinished]


def _values(data: Bytes, offsets: Places, kind: NDArray[np.uint8], end: Places) -> tuple[Numbers, Places]:
    """Return the values of fields of several kinds, and the positions after them."""
    if unknown_kinds := set(np.flatnonzero(np.bincount(kind)).tolist()) - KINDS:
        raise Malformed(f"a message has a field of unknown kind {min(unknown_kinds)}")
    value, next_offsets = np.zeros(offsets.size, np.uint64), offsets.copy()
    variable = np.flatnonzero((kind == 0) | (kind == PIECE))
    value[variable], next_offsets[variable] = varints(data, offsets[variable])
    pieces = np.flatnonzero(kind == PIECE)
    # Checked before it is added: a length may have any value.
    if (value[pieces] > (end[pieces] - next_offsets[pieces]).clip(0).astype(np.uint64)).any():
        raise Malformed("a message is truncated")
    length = value[pieces].astype(np.int64)
    value[pieces] = next_offsets[pieces].astype(np.uint64)
    next_offsets[pieces] += length
    for fixed_kind, size_bytes in FIXED_BYTES.items():
        fixed = np.flatnonzero(kind == fixed_kind)
        value[fixed] = offsets[fixed].astype(np.uint64)
        next_offsets[fixed] = offsets[fixed] + size_bytes
    return value, next_offsets


def varints(data: Bytes, offsets: Places) -> tuple[Numbers, Places]:
    """Return the numbers of variable length at these positions, and the positions after them. Raises `Malformed`."""
    low = data[offsets]
    value, next_offsets = (low & 127).astype(np.uint64), offsets + 1
    continued, shift = np.flatnonzero(low > 127), 7
    while continued.size:
        if shift >= MOST_BITS:
            raise Malformed("a message has a number of more than ten bytes")
        low = data[next_offsets[continued]]
        value[continued] |= (low & 127).astype(np.uint64) << np.uint64(shift)
        next_offsets[continued] += 1
        continued, shift = continued[low > 127], shift + 7
    return value, next_offsets
