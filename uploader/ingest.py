"""The statements that bring the rows of a batch into a table, each row once by its key; pure.

Two INSERT or MERGE statements do not conflict on BigQuery unless one of them updates or deletes rows: two uploaders
could both find a key missing and both insert it. Therefore one transaction updates the one row of the table `lease`
first. Of two transactions that update the same table, one is aborted (cloud.google.com/bigquery/docs/transactions,
"Transaction concurrency"), and all reads of a transaction see one snapshot: whoever commits has seen every row that
was committed before it began, and nobody committed since.
"""

from __future__ import annotations

from uploader import ddl
from uploader.outbox import Batch
from uploader.schema import Column, Mode

NO_NUMBER = -1  # steps and counts begin at 0


def insert_missing(dataset: str, batch: Batch, staging: str, kept_from: str | None) -> str:
    """Return the script that inserts a batch's missing rows from its staging table.

    It answers one row: `added`, the rows that were inserted, `missing`, those that the table lacks after that, and
    `leased`, the rows of `lease` that were updated. If there are none, nothing is inserted, because an UPDATE of no row
    conflicts with nothing. Rows of days before `kept_from`, which the table does not keep, are not counted as missing.
    """
    names = ", ".join(column.name for column in batch.table.columns)
    keys = ", ".join(f"S.{name}" for name in batch.table.key)
    absent = f"NOT EXISTS (SELECT 1 FROM {ddl.quoted(dataset, batch.table.name)} AS T WHERE {_same(batch)})"
    lease = ddl.quoted(dataset, ddl.LEASE)
    kept = "" if kept_from is None else f" AND S.day >= DATE '{kept_from}'"
    return (
        "DECLARE added, leased INT64 DEFAULT 0;\nBEGIN TRANSACTION;\n"
        f"UPDATE {lease} SET holder = '{batch.name}', taken_at = CURRENT_TIMESTAMP() WHERE TRUE;\n"
        "SET leased = @@row_count;\n"
        f"INSERT INTO {ddl.quoted(dataset, batch.table.name)} ({names})\n"
        f"SELECT {names} FROM `{staging}` AS S\nWHERE leased > 0 AND {absent}\n"
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY S.row_hash) = 1;\n"
        "SET added = @@row_count;\nCOMMIT TRANSACTION;\n"
        f"SELECT added, (SELECT COUNT(*) FROM `{staging}` AS S WHERE {absent}{kept}) AS missing, leased;"
    )


def last_day_expired(expiration_ms: int) -> str:
    """Return the query for the last day whose partition has expired, by the service's own clock."""
    return f"SELECT DATE(TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL {expiration_ms} MILLISECOND)) AS day"


def held_keys(dataset: str, batch: Batch) -> str:
    """Return the query for the keys that an append-only table holds of a batch's runs. Takes the parameter @runs."""
    first, last = batch.contents().days
    return (
        f"SELECT {', '.join(batch.table.key)} FROM {ddl.quoted(dataset, batch.table.name + ddl.APPENDED)}\n"
        f"WHERE day BETWEEN DATE '{first}' AND DATE '{last}' AND run_id IN UNNEST(@runs)"
    )


def missing_lines(batch: Batch, held: set[tuple[object, ...]]) -> list[str]:
    """Return the lines of a batch whose keys are not held, each key once."""
    known, found = set(held), []
    for line, values in zip(batch.lines(), batch.values(), strict=True):
        key = tuple(values.get(name) for name in batch.table.key)
        if key not in known:
            known.add(key)
            found.append(line)
    return found


def _same(batch: Batch) -> str:
    """Return the condition that a row of the table and one of the batch have the same key, within the batch's days."""
    first, last = batch.contents().days
    pairs = [_pair(batch.table.column(name)) for name in batch.table.key]
    return f"T.day BETWEEN DATE '{first}' AND DATE '{last}' AND {' AND '.join(pairs)}"


def _pair(column: Column) -> str:
    """Return the condition that two keys are equal in a column; a null, which only a number can be, is no number."""
    name = column.name
    if column.mode is Mode.REQUIRED:
        return f"T.{name} = S.{name}"
    return f"IFNULL(T.{name}, {NO_NUMBER}) = IFNULL(S.{name}, {NO_NUMBER})"
