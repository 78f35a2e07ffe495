"""Reads and writes tables as Parquet files with DuckDB, and adds rows whose keys do not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.uploader.schema import ColumnMode, Table, TableColumn, Type

if TYPE_CHECKING:
    import duckdb

TYPES = {
    Type.STRING: "VARCHAR",
    Type.INT64: "BIGINT",
    Type.FLOAT64: "DOUBLE",
    Type.BOOL: "BOOLEAN",
    Type.DATE: "DATE",
    Type.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    Type.JSON: "JSON",
}
LARGE_BYTES = 64 << 20
WRITTEN = "(FORMAT parquet, COMPRESSION zstd)"
LONGEST_LINE_BYTES = 8 << 20


def engine(only_in: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Return an in-memory connection that loads no extension and writes no file.

    With `only_in` no query reads a file outside of this folder, and none changes that.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
    connection.execute("SET TimeZone = 'UTC'")
    if only_in is not None:
        connection.execute(f"SET allowed_directories = [{text(f'{only_in}/')}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def type_of(column: TableColumn) -> str:
    """Return a column's type, as DuckDB names it."""
    return TYPES[column.type] + ("[]" if column.mode is ColumnMode.REPEATED else "")


def columns(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> dict[str, str]:
    """Return the type of each column in any of these files."""
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE SELECT * FROM {_read(files)}").fetchall()}


def load_lines(connection: duckdb.DuckDBPyConnection, table: Table, lines: str) -> None:
    """Load a file of JSON lines into the temporary table `incoming`, one row per key. Reads no other file."""
    _load(connection, table, _json_source(table, lines))


def load_parquet(connection: duckdb.DuckDBPyConnection, table: Table, file: str) -> None:
    """Load a Parquet file into the temporary table `incoming`, one row per key."""
    _load(connection, table, f"(SELECT {_columns(connection, table, [file])} FROM {_read([file])})")


def write_new(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str], target: str) -> int:
    """Write the rows of `incoming` whose keys are in none of the files; return how many. No file is written for 0."""
    drop_existing(connection, table, files)
    count = incoming_rows(connection)
    if count:
        connection.execute(f"COPY (SELECT * FROM incoming ORDER BY {_order(table)}) TO {text(target)} {WRITTEN}")
    connection.execute("DROP TABLE incoming")
    return count


def drop_existing(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> None:
    """Delete the rows from `incoming` whose keys are in one of the files."""
    if not files:
        return
    pairs_sql = " AND ".join(f'old."{name}" IS NOT DISTINCT FROM new."{name}"' for name in table.key)
    old_sql = f"(SELECT {_keys(table)} FROM {_read(files)} WHERE run_id IN (SELECT DISTINCT run_id FROM incoming))"
    connection.execute(f"DELETE FROM incoming AS new USING {old_sql} AS old WHERE {pairs_sql}")


def incoming_rows(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows `incoming` has."""
    row = connection.execute("SELECT count(*) FROM incoming").fetchone()
    return int(row[0]) if row else 0


def count_rows(connection: duckdb.DuckDBPyConnection, table: Table, file: str) -> int:
    """Read every value of a file and return how many rows it has.

    Raises duckdb.Error or ValueError for a file that cannot be read with the table's schema.
    """
    if missing_columns := sorted({*table.key, "row_hash"} - columns(connection, [file]).keys()):
        raise ValueError(f"it has no column {missing_columns[0]}")
    columns_sql = _columns(connection, table, [file])
    cursor = connection.execute(f"SELECT count(*), max(hash(t)) FROM (SELECT {columns_sql} FROM {_read([file])}) AS t")
    return int((cursor.fetchone() or (0,))[0])


def _load(connection: duckdb.DuckDBPyConnection, table: Table, source: str) -> None:
    unique_sql = f"SELECT DISTINCT ON ({_keys(table)}) * FROM {source}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE incoming AS {unique_sql}")


def write_merged(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str], target: str) -> None:
    """Merge several files into one, sorted by the clustering columns and the key."""
    columns_sql = _columns(connection, table, files)
    connection.execute(
        f"COPY (SELECT {columns_sql} FROM {_read(files)} ORDER BY {_order(table)}) TO {text(target)} {WRITTEN}"
    )


def create_view(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> None:
    """Create the view of a table over its files; it is empty without files. A column that no file has is NULL."""
    if files:
        body_sql = f"SELECT {_columns(connection, table, files)} FROM {_read(files)}"
    else:
        empty_sql = ", ".join(f'CAST(NULL AS {type_of(column)}) AS "{column.name}"' for column in table.columns)
        body_sql = f"SELECT {empty_sql} WHERE false"
    connection.execute(f'CREATE OR REPLACE VIEW "{table.name}" AS {body_sql}')


def _json_source(table: Table, lines: str) -> str:
    types_sql = ", ".join(f"{text(column.name)}: {text(type_of(column))}" for column in table.columns)
    return (
        f"read_json({text(lines)}, format = 'newline_delimited', columns = {{{types_sql}}}, "
        f"maximum_object_size = {LONGEST_LINE_BYTES})"
    )


def _columns(connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str]) -> str:
    existing = columns(connection, files)
    return ", ".join(_expression(column, existing.get(column.name)) for column in table.columns)


def _expression(column: TableColumn, stored_type: str | None) -> str:
    """Return the expression of a column of files: to bind a cast takes longer than to read many files."""
    if stored_type == type_of(column):
        return f'"{column.name}"'
    source_sql = "NULL" if stored_type is None else f'"{column.name}"'
    return f'CAST({source_sql} AS {type_of(column)}) AS "{column.name}"'


def _read(files: Sequence[str]) -> str:
    return f"read_parquet([{', '.join(map(text, files))}], union_by_name = true)"


def _keys(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in table.key)


def _order(table: Table) -> str:
    return ", ".join(f'"{name}"' for name in dict.fromkeys(("day", *table.clustered, *table.key)))


def text(value: str) -> str:
    """Return a string literal of DuckDB's SQL."""
    return "'" + value.replace("'", "''") + "'"
