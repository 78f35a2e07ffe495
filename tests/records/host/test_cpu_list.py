"""Lists of CPUs are parsed strictly and have one canonical text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_matrix.records.host import device_lists


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-2,5", [0, 1, 2, 5]),
        ("5,0-2", [5, 0, 1, 2]),
        ("", []),
        ("3-1", None),
        ("a", None),
        ("1-", None),
        ("-3", None),
        ("1,,2", None),
        (" 1", None),
        ("1\n", None),
        ("٣", None),
        ("0-999999999", None),
        ("70000", None),
    ],
)
def test_lists_are_read_strictly(text: str, expected: list[int] | None) -> None:
    assert device_lists.parse_cpus(text) == expected


@pytest.mark.parametrize(
    ("cpus", "expected"), [([3], "3-3"), ([1, 0], "0-1"), ([8, 0, 1, 2], "0-2,8"), ([0, 2, 4], "0,2,4"), ([], "")]
)
def test_lists_have_one_spelling(cpus: list[int], expected: str) -> None:
    assert device_lists.cpu_text(cpus) == expected


@given(st.sets(st.integers(0, device_lists.MOST_CPUS - 1), max_size=50))
def test_written_trace_is_read_back(cpus: set[int]) -> None:
    assert device_lists.parse_cpus(device_lists.cpu_text(cpus)) == sorted(cpus)
