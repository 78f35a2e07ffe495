"""The writer and the reader of protocol buffer messages agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.protobuf import encoded_number, encoded_piece, encoded_varint, fields, opening, varint

NUMBERS = st.integers(0, 2**64 - 1)
FIELDS = st.integers(1, 2**29 - 1)


@given(NUMBERS)
def test_a_written_number_is_read_back(value: int) -> None:
    data = encoded_varint(value)
    assert varint(data, 0) == (value, len(data))


@given(st.lists(st.tuples(FIELDS, NUMBERS | st.binary(max_size=300)), max_size=8))
def test_written_fields_are_read_back_in_their_order(expected: list[tuple[int, int | bytes]]) -> None:
    message = b"".join(
        encoded_number(field, value) if isinstance(value, int) else encoded_piece(field, value)
        for field, value in expected
    )
    read = [(field, value if isinstance(value, int) else bytes(value)) for field, value in fields(memoryview(message))]
    assert read == expected


@given(FIELDS, st.binary(max_size=300))
def test_a_piece_is_its_opening_and_its_bytes(field: int, data: bytes) -> None:
    assert encoded_piece(field, data) == opening(field, len(data)) + data
