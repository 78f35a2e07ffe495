"""Formats the summary of a repair as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.uploader.repair import RepairSummary

MOST_LISTED = 20
REPLACE_LOCAL = (
    "duplicate and altered rows are not changed: to replace them, move the Parquet files of their table elsewhere and "
    "run the same command again, which sends the rows that have a record"
)
REPLACE_BIGQUERY = (
    "duplicate and altered rows are not changed: to replace them, delete the rows of their run from the table (by day "
    "and run_id) and run the same command again"
)


def lines(repaired: RepairSummary, address: str) -> list[str]:
    """Return lines on restored rows, remaining differences and what to do."""
    from keras_matrix.uploader import verify
    from keras_matrix.uploader.warehouse import is_local

    found = [str(one) for one in repaired.restored[:MOST_LISTED]]
    if (more := len(repaired.restored) - MOST_LISTED) > 0:
        found.append(f"rows of {more} more runs were missing")
    found += [*verify.listed(list(repaired.remaining)), *repaired.doubled, *repaired.unread]
    if repaired.doubled or any(not one.missing for one in repaired.remaining):
        found.append(REPLACE_LOCAL if is_local(address) else REPLACE_BIGQUERY)
    if repaired.expired:
        found.append(f"not compared: {repaired.expired} runs that are older than the warehouse's retention")
    if repaired.lost:
        found.append(f"{repaired.lost:,} attempts are missing and have no record here: repeat their import")
    missing = sum(one.missing for one in repaired.restored)
    restored = sum(one.restored for one in repaired.restored)
    remaining = f"{_remaining(repaired)} differences remain"
    return [*found, f"repair: {missing:,} rows were missing, {restored:,} are restored, {remaining}"]


def differs(repaired: RepairSummary) -> bool:
    """Return whether rows still differ, are lost, or could not be compared."""
    return bool(_remaining(repaired) or repaired.unread or repaired.lost)


def _remaining(repaired: RepairSummary) -> int:
    return len(repaired.remaining) + len(repaired.doubled)
