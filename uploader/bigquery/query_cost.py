"""The on-demand cost of a query: bytes billed and their list price. Pure functions.

Source: https://cloud.google.com/bigquery/pricing, on-demand compute in the US multi-region, valid since 2023-07-05.
Other regions, reservations and negotiated prices differ. The first TiB of a month is free.
"""

from __future__ import annotations

from keras_matrix.records.text import TIB

USD_PER_TIB = 6.25
PRICE_SINCE = "2023-07-05"
LEAST_BYTES = 10 << 20  # billed for each table that a query references, and for a query
UNIT_BYTES = 1 << 20  # billed bytes are rounded up to it


def cost_usd(billed_bytes: int) -> float:
    """Return the list price of billed bytes in USD, without the free quota."""
    return billed_bytes / TIB * USD_PER_TIB


def billed(read_bytes: int, tables: int) -> int:
    """Return an upper bound of the bytes billed for a query that reads a number of bytes from a number of tables.

    The distribution of the bytes over the tables is unknown: the minimum is billed for all tables but one.
    """
    if not tables:
        return 0
    return -(-(max(read_bytes, LEAST_BYTES) + (tables - 1) * LEAST_BYTES) // UNIT_BYTES) * UNIT_BYTES


def usd(amount: float) -> str:
    """Return an amount in USD; amounts below 0.1 with two significant digits."""
    return f"USD {amount:,.2f}" if amount >= 0.1 or not amount else f"USD {float(f'{amount:.2g}'):.7f}".rstrip("0")
