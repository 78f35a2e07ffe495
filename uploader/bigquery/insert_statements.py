"""The statements that insert the rows of a batch into a table, one row per key. Pure functions.

Two INSERT or MERGE statements do not conflict on BigQuery unless one of them updates or deletes rows: two uploaders
could both find a key missing and both insert it. Each transaction therefore first updates the single row of the table
`lease`. If two concurrent transactions update the same table, one is aborted (cloud.google.com/bigquery/docs/
transactions, "Transaction concurrency"), and all reads of a transaction use one snapshot: a transaction that commits
has read every row that was committed before it began, and no other has committed since.
"""

from __future__ import annotations

from keras_matrix.uploader.bigquery import ddl
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import ColumnMode, TableColumn

NO_NUMBER = -1  # steps and counts begin at 0


def insert_missing(dataset: str, batch: Batch, staging: str, retained_from: str | None) -> str:
    """Return the script that inserts a batch's missing rows from its staging table.

    Its result is one row: `added`, the number of inserted rows, `missing`, the number of rows that are still missing,
    and `leased`, the number of updated rows of `lease`. If that is 0, nothing is inserted: an UPDATE of no row cannot
    conflict. Rows of days before `retained_from`, which expire on arrival, do not count as missing.
    """
    names = ", ".join(column.name for column in batch.table.columns)
    keys = ", ".join(f"S.{name}" for name in batch.table.key)
    absent = f"NOT EXISTS (SELECT 1 FROM {ddl.quoted(dataset, batch.table.name)} AS T WHERE {_same(batch)})"
    lease = ddl.quoted(dataset, ddl.LEASE)
    retained = "" if retained_from is None else f" AND S.day >= DATE '{retained_from}'"
    return (
        "DECLARE added, leased INT64 DEFAULT 0;\nBEGIN TRANSACTION;\n"
        f"UPDATE {lease} SET holder = '{batch.name}', taken_at = CURRENT_TIMESTAMP() WHERE TRUE;\n"
        "SET leased = @@row_count;\n"
        f"INSERT INTO {ddl.quoted(dataset, batch.table.name)} ({names})\n"
        f"SELECT {names} FROM `{staging}` AS S\nWHERE leased > 0 AND {absent}\n"
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY S.row_hash) = 1;\n"
        "SET added = @@row_count;\nCOMMIT TRANSACTION;\n"
        f"SELECT added, (SELECT COUNT(*) FROM `{staging}` AS S WHERE {absent}{retained}) AS missing, leased;"
    )


def last_day_expired(expiration_ms: int) -> str:
    """Return the query for the last day whose partition has expired, by the service's clock."""
    return f"SELECT DATE(TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL {expiration_ms} MILLISECOND)) AS day"


def existing_keys(dataset: str, batch: Batch) -> str:
    """Return the query for the keys of a batch's runs in an append-only table. Takes the parameter @runs."""
    first, last = batch.contents().days
    return (
        f"SELECT {', '.join(batch.table.key)} FROM {ddl.quoted(dataset, batch.table.name + ddl.APPENDED)}\n"
        f"WHERE day BETWEEN DATE '{first}' AND DATE '{last}' AND run_id IN UNNEST(@runs)"
    )


def missing_lines(batch: Batch, existing: set[tuple[object, ...]]) -> list[str]:
    """Return the lines of a batch whose keys do not exist yet, one per key."""
    known, found = set(existing), []
    for line, values in zip(batch.lines(), batch.values(), strict=True):
        key = tuple(values.get(name) for name in batch.table.key)
        if key not in known:
            known.add(key)
            found.append(line)
    return found


def _same(batch: Batch) -> str:
    """Return the join condition of table and batch: equal keys, within the batch's days."""
    first, last = batch.contents().days
    pairs = [_pair(batch.table.column(name)) for name in batch.table.key]
    return f"T.day BETWEEN DATE '{first}' AND DATE '{last}' AND {' AND '.join(pairs)}"


def _pair(column: TableColumn) -> str:
    """Return the condition that a key column is equal in both; NULL, possible only for numbers, equals NULL."""
    name = column.name
    if column.mode is ColumnMode.REQUIRED:
        return f"T.{name} = S.{name}"
    return f"IFNULL(T.{name}, {NO_NUMBER}) = IFNULL(S.{name}, {NO_NUMBER})"
