"""The seam to where rows end up: one protocol, Parquet files with DuckDB (the default) and BigQuery behind it.

An address names a warehouse: `local` (results/warehouse), `local:FOLDER`, or `bigquery://PROJECT.DATASET`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from uploader.errors import BadInput
from uploader.outbox import Batch
from uploader.schema import Column, Table

BIGQUERY = re.compile(
    r"bigquery://(?P<project>[a-z][a-z0-9-]{4,28}[a-z0-9])\.(?P<dataset>[A-Za-z0-9_]{1,1024})", re.ASCII
)
LOCAL = "local"
MOST_BYTES_BILLED = 10 << 30  # of one statement
MOST_DAYS = 400  # that a view of a dataset reads, unless it is made with another first day
Scalar = str | int | float | bool
# A table as it is in the warehouse: the type and mode of each column, by BigQuery's names.
Actual = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gives: names and rows, in the query's order."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row by its columns' names."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Warehouse(Protocol):
    """Takes batches, each row once whatever is sent twice; gives answers. Every call raises `WarehouseFailure`."""

    @property
    def address(self) -> str:
        """Its address."""

    def create(self) -> list[str]:
        """Make what is missing of dataset, tables and views; return what was made or renewed."""

    def actual(self, table: Table) -> Actual | None:
        """Return a table as it is, None where there is none."""

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Add NULLABLE or REPEATED columns to a table."""

    def merge(self, batch: Batch) -> int:
        """Take a batch and return how many of its rows were new. Raises `RowsRefused` where some row is refused."""

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer one SELECT in BigQuery's dialect over the tables and views; parameters stand as @name."""

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return how many bytes a query would read, without running it; None where reading costs nothing."""

    def kept_from(self) -> str | None:
        """Return the first day (ISO) whose rows it keeps; None if it keeps rows for ever."""

    def is_empty(self) -> bool:
        """Return whether no table has a row, by what costs nothing to read."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a warehouse is reached, and what a call may cost.

    `most_bytes_billed` limits each statement; `deadline_s` limits all calls together, counted from the first one, and
    without it each call has a limit of its own. Views are made to read the days from `first_day` on (as 2026-01-31),
    without it the last `MOST_DAYS`.
    """

    append_only: bool = False
    location: str | None = None
    impersonate: str | None = None
    most_bytes_billed: int = MOST_BYTES_BILLED
    deadline_s: float | None = None
    first_day: str | None = None


def is_local(address: str, flag: str = "--to") -> bool:
    """Return whether an address names a folder, and no dataset. Raises `BadInput`, with the flag, for what is none."""
    if address == LOCAL or address.startswith(f"{LOCAL}:"):
        return True
    if BIGQUERY.fullmatch(address):
        return False
    raise BadInput(
        f"{flag}: must be local, local:FOLDER or bigquery://PROJECT.DATASET (project of 6 to 30 small letters, "
        f"digits and hyphens, dataset of letters, digits and underscores), got {address!r}"
    )


def outbox_folder(address: str, results: Path) -> Path:
    """Return where the outbox for an address lies: beside the results, so that a later push finds it.

    That of a folder has a part of the folder's hash in its name: a/b is not a-b, nor b the one in another place.
    Raises `BadInput` for what is no address.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", address.replace("://", "-")).strip("-")
    if is_local(address) and (folder := folder_of(address)):
        name += "-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    return results / "outbox" / name


def folder_of(address: str) -> Path | None:
    """Return the folder that a local address names, None for the default one."""
    folder = address.partition(":")[2]
    return Path(folder).expanduser() if folder else None
