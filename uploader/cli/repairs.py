"""What a repair did, in lines for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uploader.repair import Repaired

MOST_LISTED = 20
REPLACE_LOCAL = (
    "rows that are doubled or were altered stay: to replace them, move the Parquet files of their table elsewhere "
    "and run the same again; it sends the rows that have a record"
)
REPLACE_BIGQUERY = (
    "rows that are doubled or were altered stay: to replace them, delete the rows of such a run from its table (by day "
    "and run_id) and run the same again"
)


def lines(repaired: Repaired, address: str) -> list[str]:
    """Return what was missing, what came back, what still differs and what to do."""
    from uploader import verify
    from uploader.warehouse import is_local

    found = [str(one) for one in repaired.returned[:MOST_LISTED]]
    if (more := len(repaired.returned) - MOST_LISTED) > 0:
        found.append(f"rows of {more} runs more were missing")
    found += [*verify.listed(list(repaired.left)), *repaired.doubled, *repaired.unread]
    if repaired.doubled or any(not one.missing for one in repaired.left):
        found.append(REPLACE_LOCAL if is_local(address) else REPLACE_BIGQUERY)
    if repaired.expired:
        found.append(f"not compared: {repaired.expired} runs from before the first day that the warehouse keeps")
    if repaired.lost:
        found.append(f"{repaired.lost:,} attempts are missing that have no record here: import what was imported again")
    missing = sum(one.missing for one in repaired.returned)
    back = sum(one.back for one in repaired.returned)
    return [*found, f"repair: {missing:,} rows were missing, {back:,} are back, {_left(repaired)} differences left"]


def differs(repaired: Repaired) -> bool:
    """Return whether something still differs, is lost, or could not be compared."""
    return bool(_left(repaired) or repaired.unread or repaired.lost)


def _left(repaired: Repaired) -> int:
    return len(repaired.left) + len(repaired.doubled)
