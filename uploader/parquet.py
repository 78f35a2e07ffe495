"""Tables as Parquet files, written and read with DuckDB: their types, their keys, and rows that are not there yet."""

from __future__ import annotations

from collections.abc import Sequence
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


def take(connection: duckdb.DuckDBPyConnection, table: Table, lines: str) -> None:
    """Read a file of JSON lines into the temporary table `taken`, of a doubled key one row. Reads no other file."""
    _take(connection, table, _given(table, lines))


def take_file(connection: duckdb.DuckDBPyConnection, table: Table, file: str) -> None:
    """Read a Parquet file into the temporary table `taken`, of a doubled key one row."""
    _take(connection, table, f"(SELECT {_shown(connection, table, [file])} FROM {_read([file])})")


def write_new(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str], target: str) -> int:
    """Write those rows of `taken` whose keys no file has; return how many, and write nothing for none."""
    drop_known(connection, table, files)
    count = taken(connection)
    if count:
        connection.execute(f"COPY (SELECT * FROM taken ORDER BY {_order(table)}) TO {text(target)} {WRITTEN}")
    connection.execute("DROP TABLE taken")
    return count


def drop_known(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> None:
    """Delete from `taken` the rows whose keys a file has."""
    if not files:
        return
    pairs = " AND ".join(f'old."{name}" IS NOT DISTINCT FROM new."{name}"' for name in table.key)
    old = f"(SELECT {_keys(table)} FROM {_read(files)} WHERE run_id IN (SELECT DISTINCT run_id FROM taken))"
    connection.execute(f"DELETE FROM taken AS new USING {old} AS old WHERE {pairs}")


def taken(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows `taken` has."""
    found = connection.execute("SELECT count(*) FROM taken").fetchone()
    return int(found[0]) if found else 0


def rows(connection: duckdb.DuckDBPyConnection, table: Table, file: str) -> int:
    """Read every value of a file and return how many rows it has.

    Raises duckdb.Error or ValueError for a file that cannot be read as one of the table's.
    """
    if missing := sorted({*table.key, "row_hash"} - set(columns(connection, [file]))):
        raise ValueError(f"it has no column {missing[0]}")
    shown = _shown(connection, table, [file])
    found = connection.execute(f"SELECT count(*), max(hash(t)) FROM (SELECT {shown} FROM {_read([file])}) AS t")
    return int((found.fetchone() or (0,))[0])


def _take(connection: duckdb.DuckDBPyConnection, table: Table, source: str) -> None:
    unique = f"SELECT DISTINCT ON ({_keys(table)}) * FROM {source}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE taken AS {unique}")


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


def _keys(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.key)


def _order(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in dict.fromkeys(("day", *table.clustered, *table.key)))


def text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"
