"""Reads and writes the fields of a protocol buffer message without its definition.

Supports the kinds of fields in profilers' files and in records of images: numbers of variable length, byte strings
("pieces"), and, to read, numbers of four or eight bytes. A truncated message raises `IndexError` or `Malformed`, which
the reader of the file reports.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | memoryview
MOST_BITS = 64
FIXED_BYTES = {1: 8, 5: 4}


class Malformed(ValueError):
    """The bytes are not a valid message."""


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field of a message: a piece as a view of it, any other value as an integer."""
    offset, end = 0, len(data)
    while offset < end:
        key, offset = varint(data, offset) if data[offset] > 127 else (data[offset], offset + 1)
        kind = key & 7
        if kind == 0:
            value, offset = varint(data, offset)
            yield key >> 3, value
        elif kind == 2:
            piece_bytes, offset = varint(data, offset) if data[offset] > 127 else (data[offset], offset + 1)
            if offset + piece_bytes > end:
                raise Malformed("a message is truncated")
            yield key >> 3, data[offset : offset + piece_bytes]
            offset += piece_bytes
        elif kind in FIXED_BYTES:
            piece_bytes = FIXED_BYTES[kind]
            if offset + piece_bytes > end:
                raise Malformed("a message is truncated within a number")
            yield key >> 3, int.from_bytes(data[offset : offset + piece_bytes], "little")
            offset += piece_bytes
        else:
            raise Malformed(f"a message has a field of unknown kind {kind}")


def passed(data: bytes | memoryview, offset: int) -> int:
    """Return the position after a field to skip, of any number and kind. Raises `Malformed`."""
    key, offset = varint(data, offset)
    kind = key & 7
    if kind in FIXED_BYTES:
        return offset + FIXED_BYTES[kind]
    value, offset = varint(data, offset)
    if kind not in (0, 2):
        raise Malformed(f"a message has a field of unknown kind {kind}")
    return offset + value if kind == 2 else offset


def varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    """Return the number of variable length at a position, and the position after it. Raises `Malformed`."""
    value = data[offset]
    offset += 1
    if value < 128:
        return value, offset
    value &= 127
    shift = 7
    while shift < MOST_BITS:
        piece = data[offset]
        offset += 1
        value |= (piece & 127) << shift
        if piece < 128:
            return value, offset
        shift += 7
    raise Malformed("a message has a number of more than ten bytes")


def signed(value: int) -> int:
    """Interpret a number of 64 bits as signed; a negative number is returned unchanged."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def real(data: bytes | memoryview) -> float:
    """Return the floating-point number in these eight bytes. Raises `Malformed` for fewer."""
    try:
        return float(struct.unpack("<d", data)[0])
    except struct.error as error:
        raise Malformed("a message is truncated within a number") from error


def text(value: Value) -> str:
    """Return a piece as text. Raises `Malformed` for a number."""
    if isinstance(value, int):
        raise Malformed("a message has a number instead of text")
    return str(value, "utf-8", "replace")


def piece(value: Value) -> memoryview:
    """Return a piece as it is. Raises `Malformed` for a number."""
    if isinstance(value, int):
        raise Malformed("a message has a number instead of a piece")
    return value


def number(value: Value) -> int:
    """Return a number. Raises `Malformed` for a piece."""
    if isinstance(value, int):
        return value
    raise Malformed("a message has a piece instead of a number")


def encoded_varint(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first, each but the last marked."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def encoded_number(field: int, value: int) -> bytes:
    """Return a field with a number of at least 0."""
    return encoded_varint(field << 3) + encoded_varint(value)


def encoded_piece(field: int, data: bytes) -> bytes:
    """Return a field with a byte string, a text or a message."""
    return opening(field, len(data)) + data


def opening(field: int, size_bytes: int) -> bytes:
    """Return what stands before the bytes of a piece of that size, so that a large one need not be copied."""
    return encoded_varint(field << 3 | 2) + encoded_varint(size_bytes)
