"""Many messages read at once give the same fields as each read separately."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from keras_matrix.records import protobuf
from keras_matrix.records.protobuf import Malformed
from keras_matrix.records.traces.xspace import xplane
from tests.records.traces.synthetic import varint

KINDS = (0, 1, 2, 5)


def piece(chance: random.Random) -> bytes:
    """A field of any number and kind."""
    kind = chance.choice(KINDS)
    key = varint(chance.choice((1, 2, 15, 16, 3000)) << 3 | kind)
    if kind == 0:
        return key + varint(chance.getrandbits(chance.choice((1, 7, 8, 35, 63, 64))))
    if kind == 2:
        size = chance.choice((0, 1, 127, 128, 300))
        return key + varint(size) + b"\xff" * size
    return key + chance.randbytes(protobuf.FIXED_BYTES[kind])


def joined(messages: list[bytes]) -> tuple[xplane.Bytes, xplane.Places, xplane.Places]:
    """Messages behind one another, with a byte between them, and their places."""
    sizes = np.array([len(one) for one in messages])
    ends = np.cumsum(sizes + 1) - 1
    return xplane.padded(b"\xff".join(messages)), ends - sizes, ends


def at_once(messages: list[bytes]) -> list[list[tuple[int, Any]]]:
    data, begins, ends = joined(messages)
    found: list[list[tuple[int, Any]]] = [[] for _ in messages]
    for one in xplane.event_fields(data, begins, ends):
        for message, key, value, end in zip(*(column.tolist() for column in one), strict=True):
            alone = value if key & 7 == 0 else data[value:end].tobytes()
            found[message].append((key >> 3, alone))
    return found


def alone(message: bytes) -> list[tuple[int, Any]]:
    found = []
    for (key, value), kind in zip(protobuf.fields(memoryview(message)), kinds(message), strict=True):
        if isinstance(value, int):
            found.append((key, value if kind == 0 else value.to_bytes(protobuf.FIXED_BYTES[kind], "little")))
        else:
            found.append((key, bytes(value)))
    return found


def kinds(message: bytes) -> list[int]:
    found, at = [], 0
    while at < len(message):
        found.append(protobuf.varint(message, at)[0] & 7)
        at = protobuf.passed(message, at)
    return found


def test_many_messages_are_read_as_each_alone() -> None:
    chance = random.Random(7)
    messages = [b"".join(piece(chance) for _ in range(chance.randrange(9))) for _ in range(500)]
    assert at_once(messages) == [alone(message) for message in messages]
    assert {kind for message in messages for kind in kinds(message)} == set(KINDS)


def test_empty_message_has_no_fields() -> None:
    assert (at_once([]), at_once([b"", b""])) == ([], [[], []])


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"\x08", id="before a number"),
        pytest.param(b"\x08\x80", id="amid a number"),
        pytest.param(b"\x88", id="amid a key"),
        pytest.param(b"\x0a\x05abc", id="amid a piece"),
        pytest.param(b"\x0a" + varint((1 << 64) - 1), id="amid a piece longer than any file"),
        pytest.param(b"\x09" + b"\x01" * 7, id="amid eight bytes"),
        pytest.param(b"\x0d" + b"\x01" * 3, id="amid four bytes"),
        pytest.param(b"\x0b\x01", id="of no kind"),
        pytest.param(b"\x08" + b"\x80" * 10 + b"\x00", id="a number of eleven bytes"),
    ],
)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_truncated_message_is_malformed_at_any_position(broken: bytes, where: int) -> None:
    messages = [b"\x08\x01", b"\x10\x02"]
    messages.insert(where, broken)
    with pytest.raises(Malformed):
        at_once(messages)
