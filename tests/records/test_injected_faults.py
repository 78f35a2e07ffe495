"""Names of faults are parsed strictly, and the counterpart in the base leaves only the named difference."""

from __future__ import annotations

import math

import pytest

from keras_matrix.records.injected_faults import UnknownFault, counterpart, parse, scattered_share


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slower:0.05", ("slower", 0.05)),
        ("copy:64", ("copy", 64)),
        ("recompile:100", ("recompile", 100)),
        ("first-epoch:1", ("first-epoch", 1)),
        ("variance:0.3", ("variance", 0.3)),
    ],
)
def test_a_fault_is_a_kind_and_a_value(text: str, expected: tuple[str, float]) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faster:1", "must be slower:SHARE, copy:MEBIBYTES"),
        ("slower", "slower: SHARE must be a number above 0 and up to 10; got 'slower'"),
        ("slower:nan", "got 'slower:nan'"),
        ("copy:5000", "copy: MEBIBYTES must be a number above 0 and up to 4096"),
        ("recompile:1.5", "recompile: EVERY must be an integer above 0"),
        ("variance:0", "above 0"),
    ],
)
def test_invalid_fault_is_rejected_with_the_valid_names(text: str, message: str) -> None:
    with pytest.raises(UnknownFault) as refused:
        parse(text)
    assert message in str(refused.value)


def test_scattered_work_has_the_geometric_mean_of_the_steady_work_of_the_base() -> None:
    shares = [scattered_share(0.5, repeat) for repeat in range(40)]
    assert counterpart("variance:0.5") == "slower:0.5"
    assert math.isclose(sum(math.log1p(share) for share in shares) / 40, math.log1p(parse("slower:0.5")[1]))
    assert all(sorted(shares[i : i + 2]) == [0.0, 1.25] for i in range(0, 40, 2))
    assert {shares[i] for i in range(0, 40, 2)} == {0.0, 1.25}


@pytest.mark.parametrize("fault", [None, "slower:1", "copy:8", "recompile:9", "first-epoch:1"])
def test_base_of_other_faults_has_no_fault(fault: str | None) -> None:
    assert counterpart(fault) is None
