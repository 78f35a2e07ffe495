"""Billed bytes and their price: list price, minimum and rounding."""

from __future__ import annotations

import pytest

from keras_matrix.uploader.bigquery.jobs import billed, cost_usd, usd

MIB = 1 << 20


@pytest.mark.parametrize(
    ("read_bytes", "tables", "billed_bytes"),
    [
        (0, 0, 0),
        (0, 1, 10 * MIB),
        (10 * MIB + 1, 1, 11 * MIB),
        (0, 3, 30 * MIB),
        (40 * MIB, 3, 60 * MIB),
        (1 << 40, 1, 1 << 40),
    ],
)
def test_each_table_is_billed_at_least_10_mib_and_the_rest_in_whole_mib(
    read_bytes: int, tables: int, billed_bytes: int
) -> None:
    assert billed(read_bytes, tables) == billed_bytes


def test_a_tib_has_its_list_price() -> None:
    assert cost_usd(1 << 40) == 6.25


@pytest.mark.parametrize(
    ("amount", "expected"), [(0, "USD 0.00"), (0.00006, "USD 0.00006"), (0.0123, "USD 0.012"), (1234.5, "USD 1,234.50")]
)
def test_small_amounts_have_two_significant_digits(amount: float, expected: str) -> None:
    assert usd(amount) == expected
