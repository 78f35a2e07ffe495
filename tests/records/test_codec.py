"""The codec is strict in both directions."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.codec import CodecError, canonical, decode, dumps, loads
from keras_matrix.records.schema import Record, Status, Times


def test_a_record_survives_writing_and_reading(record: Record) -> None:
    assert decode(Record, loads(dumps(record))) == record


@dataclass(frozen=True)
class Sample:
    """A value of each kind that a record has."""

    count: int
    share: float | None
    text: str
    status: Status
    labels: list[str]
    figures: dict[str, float]
    inner: list[Sample]


FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1)
PARTS = {"labels": st.lists(st.text(), max_size=3), "figures": st.dictionaries(st.text(), FINITE, max_size=3)}
SAMPLES = st.recursive(
    st.builds(Sample, NUMBERS, st.none() | FINITE, st.text(), **PARTS, inner=st.just([])),
    lambda inner: st.builds(Sample, NUMBERS, st.none() | FINITE, st.text(), **PARTS, inner=st.lists(inner, max_size=2)),
    max_leaves=3,
)


@given(SAMPLES)
def test_any_value_survives_writing_and_reading(value: Sample) -> None:
    assert decode(Sample, loads(dumps(value))) == value
    assert decode(Sample, loads(canonical(value))) == value


@pytest.mark.fault("F11", mutation="dumps() writes NaN")
def test_nan_is_never_written(record: Record) -> None:
    with pytest.raises(CodecError, match="NaN or infinity"):
        dumps(replace(record, times=Times(step_time_s=math.nan)))


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1, "a": 2}', "{", "[" * 100_000, b"\xff\xfe\x00"])
def test_invalid_json_is_rejected(text: str | bytes) -> None:
    with pytest.raises(CodecError):
        loads(text)


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**30])
def test_an_integer_of_more_than_64_bits_is_refused(number: int) -> None:
    """Mutation: `_decode_scalar` accepts every int, and the warehouse has no column for it."""
    assert decode(list[int], [2**63 - 1]) == [2**63 - 1]
    with pytest.raises(CodecError, match=r"record\[0\]: must be int, got"):
        decode(list[int], [number])


def test_integer_is_decoded_as_a_float_field() -> None:
    assert decode(Times, {"step_time_s": 1}).step_time_s == 1.0


def test_a_tuple_of_equal_items_is_decoded_from_a_list() -> None:
    assert decode(tuple[int, ...], [1, 2], "x") == (1, 2)
    with pytest.raises(CodecError, match=r"x\[1\]: must be int, got 'two'"):
        decode(tuple[int, ...], [1, "two"], "x")


def test_canonical_text_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical({"b": 1, "a": Status.OK}) == canonical({"a": Status.OK, "b": 1}) == '{"a":"ok","b":1}'


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_a_codec_error(data: bytes) -> None:
    with contextlib.suppress(CodecError):
        loads(data)
