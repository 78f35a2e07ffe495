"""The interface of warehouses, with two implementations: Parquet files with DuckDB (the default) and BigQuery.

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

from keras_matrix.records.files import UnfitFile, refuse_links
from keras_matrix.uploader.errors import BadInput
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import Table, TableColumn

BIGQUERY = re.compile(
    r"bigquery://(?P<project>[a-z][a-z0-9-]{4,28}[a-z0-9])\.(?P<dataset>[A-Za-z0-9_]{1,1024})", re.ASCII
)
LOCAL = "local"
MOST_BYTES_BILLED = 10 << 30  # of one statement
MOST_DAYS = 400  # number of days that a dataset's views read by default
Scalar = str | int | float | bool
# The actual columns of a table: type and mode of each, by BigQuery's names.
Actual = Mapping[str, tuple[str, str]]


RowHashes = Mapping[tuple[Any, ...], int]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The result of a query: column names and rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Warehouse(Protocol):
    """Stores batches with one row per key, and runs queries. Every method may raise `WarehouseFailure`."""

    @property
    def address(self) -> str:
        """The address that opens it."""

    def create(self) -> list[str]:
        """Create missing datasets, tables and views; return what was created or replaced."""

    def actual(self, table: Table) -> Actual | None:
        """Return the actual columns of a table, None if it is missing."""

    def add_columns(self, table: Table, columns: Sequence[TableColumn]) -> None:
        """Add NULLABLE or REPEATED columns to a table."""

    def merge(self, batch: Batch) -> int:
        """Add the rows of a batch whose keys are missing; return how many. Raises `RowsRefused`."""

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Run one SELECT in BigQuery's dialect over the tables and views; parameters are written as @name."""

    def row_hashes(self, table: Table, days: tuple[str, str]) -> RowHashes:
        """Return the hash of each row of a table from a first to a last day (ISO), by its key."""

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return how many bytes a query would read, without running it; None if reading is free."""

    def retained_from(self) -> str | None:
        """Return the first day (ISO) whose rows are retained; None if rows never expire."""

    def is_empty(self) -> bool:
        """Return whether no table has a row, from metadata that is free to read."""

    def close(self) -> None:
        """Close connections."""


def read_row_hashes(warehouse: Warehouse, table: Table, days: tuple[str, str]) -> RowHashes:
    """Return the hashes of rows, see `Warehouse.row_hashes`, with one query."""
    sql = (
        f"SELECT {', '.join(table.key)}, row_hash FROM {table.name} "  # noqa: S608 - names of the schema
        "WHERE day >= CAST(@since AS DATE) AND day <= CAST(@until AS DATE)"
    )
    rows = warehouse.query(sql, {"since": days[0], "until": days[1]}).rows
    return {tuple(row[:-1]): int(row[-1]) for row in rows}


@dataclass(frozen=True, slots=True)
class Options:
    """Options for opening a warehouse, and limits of cost and time.

    `most_bytes_billed` limits each statement; `deadline_s` is a common limit for all calls from the first one on,
    without which each call has its own timeout. Views are created to read the days from `first_day` on (such as
    2026-01-31), by default the last `MOST_DAYS`.
    """

    append_only: bool = False
    location: str | None = None
    impersonate: str | None = None
    most_bytes_billed: int = MOST_BYTES_BILLED
    deadline_s: float | None = None
    first_day: str | None = None


def is_local(address: str, flag: str = "--to") -> bool:
    """Return whether an address names a folder, not a dataset. Raises `BadInput`, which names the flag."""
    if address == LOCAL or address.startswith(f"{LOCAL}:"):
        return True
    if BIGQUERY.fullmatch(address):
        return False
    # Not the address itself: it may contain a password.
    address_text = "an address with a user or a password" if "@" in address else repr(address[:200])
    raise BadInput(
        f"{flag}: must be local, local:FOLDER or bigquery://PROJECT.DATASET (project of 6 to 30 small letters, "
        f"digits and hyphens, dataset of letters, digits and underscores), got {address_text}"
    )


LONGEST_NAME = 200  # of the readable part of a folder's name; file systems permit 255 bytes


def outbox_folder(address: str, results: Path) -> Path:
    """Return the folder of an address's outbox, in the results folder, so that a later push finds it.

    The outbox of a local folder has a hash of the absolute path in its name, which distinguishes a/b from a-b.
    Raises `BadInput` for an invalid address.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", address.replace("://", "-")).strip("-")
    if is_local(address) and (folder := folder_of(address)):
        name = f"{name[:LONGEST_NAME]}-" + hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    try:
        refuse_links(results / "outbox" / name, results)
    except UnfitFile as error:
        raise BadInput(f"{results / 'outbox' / name}: {error}; replace it by the folder") from error
    return results / "outbox" / name


def folder_of(address: str) -> Path | None:
    """Return the folder that a local address names, None for the default one."""
    folder = address.partition(":")[2]
    return Path(folder).expanduser() if folder else None
