"""What a query costs on demand: bytes billed and their price; pure.

Source: https://cloud.google.com/bigquery/pricing, on-demand compute in the US multi-region, in force since 2023-07-05.
Other regions, reservations and negotiated prices differ. The first TiB of a month is free of charge.
"""

from __future__ import annotations

from dataclasses import dataclass

USD_PER_TIB = 6.25
PRICE_SINCE = "2023-07-05"
LEAST_BYTES = 10 << 20  # billed for each table that a query references, and for a query
UNIT_BYTES = 1 << 20  # billed bytes are rounded up to it
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Price:
    """Bytes that a query reads, bytes that are billed for it at most, and USD for these."""

    read_bytes: int
    billed_bytes: int

    @property
    def usd(self) -> float:
        """The list price, free quota left out."""
        return cost_usd(self.billed_bytes)


def cost_usd(billed_bytes: int) -> float:
    """Return the list price of billed bytes, free quota left out."""
    return billed_bytes / (1 << 40) * USD_PER_TIB


def price(read_bytes: int, tables: int) -> Price:
    """Return what reading that many bytes of that many tables costs.

    How the bytes are spread over the tables is not known: each is counted as if the others were below the minimum.
    """
    if not tables:
        return Price(read_bytes, 0)
    billed = max(read_bytes, LEAST_BYTES) + (tables - 1) * LEAST_BYTES
    return Price(read_bytes, -(-billed // UNIT_BYTES) * UNIT_BYTES)


def size(count: int) -> str:
    """Return bytes as people write them."""
    number = float(count)
    for unit in UNITS:
        if number < 1024 or unit == UNITS[-1]:
            break
        number /= 1024
    return f"{count} B" if unit == "B" else f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"


def usd(amount: float) -> str:
    """Return an amount of money; small ones with two figures that count."""
    return f"USD {amount:,.2f}" if amount >= 0.1 or not amount else f"USD {float(f'{amount:.2g}'):.7f}".rstrip("0")
