"""Tables as Parquet files, written and read with DuckDB: their types, their keys, and rows that are not there yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uploader.schema import Column, Mode, Table, Type

if TYPE_CHECKING:
    import duckdb

TYPES = {
    Type.STRING: "VARCHAR",
    Type.INT64: "BIGINT",
    Type.FLOAT64: "DOUBLE",
    Type.BOOL: "BOOLEAN",
    Type.DATE: "DATE",
    Type.TIMESTAMP: "TIMESTAMPTZ",
    Type.JSON: "JSON",
}
LARGE_BYTES = 64 << 20
WRITTEN = "(FORMAT parquet, COMPRESSION zstd)"
LONGEST_LINE_BYTES = 8 << 20


def engine() -> duckdb.DuckDBPyConnection:
    """Return an empty engine in memory. It loads no extension and keeps no file."""
    import duckdb

    made = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    made.execute("SET TimeZone = 'UTC'")
    return made


def type_of(column: Column) -> str:
    """Return a column's type as DuckDB names it."""
    return TYPES[column.type] + ("[]" if column.mode is Mode.REPEATED else "")


def columns(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> list[str]:
    """Return the names of the columns that any of these files has."""
    found = connection.execute("SELECT DISTINCT name FROM parquet_schema($files)", {"files": list(files)}).fetchall()
    return [name for (name,) in found]


def write_new(
    connection: duckdb.DuckDBPyConnection, table: Table, lines: str, files: Sequence[str], target: str
) -> int:
    """Write those rows of a file of JSON lines whose keys no file has; return how many, and write nothing for none."""
    given = _given(table, lines)
    if files:
        pairs = " AND ".join(f'old."{name}" IS NOT DISTINCT FROM new."{name}"' for name in table.key)
        keys = ", ".join(f'"{name}"' for name in table.key)
        runs = f"SELECT DISTINCT run_id FROM {given}"
        old = f"(SELECT {keys} FROM {_read(files)} WHERE run_id IN ({runs}))"
        given = f"(SELECT new.* FROM {given} AS new ANTI JOIN {old} AS old ON {pairs})"
    keys = ", ".join(f'"{name}"' for name in table.key)
    unique = f"SELECT DISTINCT ON ({keys}) * FROM {given}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE taken AS {unique}")
    found = connection.execute("SELECT count(*) FROM taken").fetchone()
    count = int(found[0]) if found else 0
    if count:
        connection.execute(f"COPY (SELECT * FROM taken ORDER BY {_order(table)}) TO {text(target)} {WRITTEN}")
    connection.execute("DROP TABLE taken")
    return count


def write_one(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str], target: str) -> None:
    """Write the rows of several files as one, sorted as the table is clustered."""
    shown = _shown(connection, table, files)
    connection.execute(
        f"COPY (SELECT {shown} FROM {_read(files)} ORDER BY {_order(table)}) TO {text(target)} {WRITTEN}"
    )


def show(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> None:
    """Make the view of a table over its files; without a file it is empty. A column no file has yet is NULL."""
    if files:
        body = f"SELECT {_shown(connection, table, files)} FROM {_read(files)}"
    else:
        empty = ", ".join(f'CAST(NULL AS {type_of(column)}) AS "{column.name}"' for column in table.columns)
        body = f"SELECT {empty} WHERE false"
    connection.execute(f'CREATE OR REPLACE VIEW "{table.name}" AS {body}')


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _given(table: Table, lines: str) -> str:
    types = ", ".join(f"{text(column.name)}: {text(type_of(column))}" for column in table.columns)
    return (
        f"read_json({text(lines)}, format = 'newline_delimited', columns = {{{types}}}, "
        f"maximum_object_size = {LONGEST_LINE_BYTES})"
    )


def _shown(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> str:
    there = set(columns(connection, files))
    found = []
    for column in table.columns:
        source = f'"{column.name}"' if column.name in there else "NULL"
        found.append(f'CAST({source} AS {type_of(column)}) AS "{column.name}"')
    return ", ".join(found)


def _read(files: Sequence[str]) -> str:
    return f"read_parquet([{', '.join(map(text, files))}], union_by_name = true)"


def _order(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in dict.fromkeys(("day", *table.clustered, *table.key)))


def text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"
