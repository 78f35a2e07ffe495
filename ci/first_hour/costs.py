"""The cost of a query in a first hour on BigQuery. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from keras_matrix.uploader.bigquery.jobs import cost_usd


@dataclass(frozen=True, slots=True)
class QueryCost:
    """Bytes and time of one dashboard query. Bytes are None if the service does not report them."""

    name: str
    rows: int
    duration_s: float
    dry_run_bytes: int | None
    processed_bytes: int | None
    billed_bytes: int | None

    @property
    def cost_usd(self) -> float | None:
        """The on-demand price in USD."""
        return price_usd(self.billed_bytes)

    @property
    def within_estimate(self) -> bool:
        """Whether it read at most as much as its dry run predicted; true if either is not reported."""
        if self.dry_run_bytes is None or self.processed_bytes is None:
            return True
        return self.processed_bytes <= self.dry_run_bytes


def price_usd(billed_bytes: int | None) -> float | None:
    """Return the on-demand price of a number of bytes in USD."""
    return None if billed_bytes is None else cost_usd(billed_bytes)


def days_text(days: float) -> str:
    """Return a number of days as text."""
    return f"{days:g} day" if days == 1 else f"{days:g} days"
