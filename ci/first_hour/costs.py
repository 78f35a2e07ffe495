"""What a query of a first hour on BigQuery cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uploader.price import cost_usd


@dataclass(frozen=True, slots=True)
class QueryCost:
    """What one query of the dashboards read. Bytes are None where the service does not report them."""

    name: str
    rows: int
    duration_s: float
    dry_run_bytes: int | None
    processed_bytes: int | None
    billed_bytes: int | None

    @property
    def cost_usd(self) -> float | None:
        """Its price on demand."""
        return price_usd(self.billed_bytes)

    @property
    def within_estimate(self) -> bool:
        """Whether it read no more than its dry run said; where either is not reported nothing is known against it."""
        if self.dry_run_bytes is None or self.processed_bytes is None:
            return True
        return self.processed_bytes <= self.dry_run_bytes


def price_usd(billed_bytes: int | None) -> float | None:
    """Return what so many bytes cost on demand."""
    return None if billed_bytes is None else cost_usd(billed_bytes)


def days_text(days: float) -> str:
    """Return a number of days for a reader."""
    return f"{days:g} day" if days == 1 else f"{days:g} days"
