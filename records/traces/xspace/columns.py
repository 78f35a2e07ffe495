"""Reads the fields of millions of protocol buffer messages at once, as columns.

`wire.fields` reads one message from its first field to its last. Here the first fields of all messages are read
together, then the second ones, and so on: as many iterations as the longest message has fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_matrix.records.protobuf import FIXED_BYTES, MOST_BITS, Malformed

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]

# Zeros after the last byte: any truncated number ends there.
PADDING = 16
PIECE = 2
KINDS = frozenset({0, PIECE, *FIXED_BYTES})


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
    found = np.zeros(len(data) + PADDING, np.uint8)
    found[: len(data)] = np.frombuffer(data, np.uint8)
    return found


def fields(data: Bytes, begins: Places, ends: Places) -> Iterator[Fields]:
    """Yield the first fields of the messages at these positions, then the second ones, until all are read.

    `data` is `padded`. Raises `Malformed` for a truncated message, or a field of an unknown kind.
    """
    message = np.flatnonzero(begins < ends)
    at, end = begins[message], ends[message]
    while message.size:
        key, at = varints(data, at)
        kind = (key & np.uint64(7)).astype(np.uint8)
        if kind.any():
            value, at = _values(data, at, kind, end)
        else:
            value, at = varints(data, at)
        if (at > end).any():
            raise Malformed("a message is truncated")
        yield Fields(message, key, value, at)
        more = at < end
        if not more.all():
            message, at, end = message[more], at[more], end[more]


def _values(data: Bytes, at: Places, kind: NDArray[np.uint8], end: Places) -> tuple[Numbers, Places]:
    """Return the values of fields of several kinds, and the positions after them."""
    if unknown := set(np.flatnonzero(np.bincount(kind)).tolist()) - KINDS:
        raise Malformed(f"a message has a field of unknown kind {min(unknown)}")
    value, behind = np.zeros(at.size, np.uint64), at.copy()
    variable = np.flatnonzero((kind == 0) | (kind == PIECE))
    value[variable], behind[variable] = varints(data, at[variable])
    pieces = np.flatnonzero(kind == PIECE)
    # Checked before it is added: a length may have any value.
    if (value[pieces] > (end[pieces] - behind[pieces]).clip(0).astype(np.uint64)).any():
        raise Malformed("a message is truncated")
    length = value[pieces].astype(np.int64)
    value[pieces] = behind[pieces].astype(np.uint64)
    behind[pieces] += length
    for one, size in FIXED_BYTES.items():
        fixed = np.flatnonzero(kind == one)
        value[fixed] = at[fixed].astype(np.uint64)
        behind[fixed] = at[fixed] + size
    return value, behind


def varints(data: Bytes, at: Places) -> tuple[Numbers, Places]:
    """Return the numbers of variable length at these positions, and the positions after them. Raises `Malformed`."""
    low = data[at]
    value, behind = (low & 127).astype(np.uint64), at + 1
    more, shift = np.flatnonzero(low > 127), 7
    while more.size:
        if shift >= MOST_BITS:
            raise Malformed("a message has a number of more than ten bytes")
        low = data[behind[more]]
        value[more] |= (low & 127).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more, shift = more[low > 127], shift + 7
    return value, behind
