"""Writes and reads trace graphs as Parquet files with DuckDB, one file per rank.

A row is an operation, in the columns of `COLUMNS`; the graph's header, as JSON, is in the metadata of each file under
`HEADER`. A file is published atomically; a folder holds one graph. What rows and header mean is the caller's matter.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_matrix.records import files
from keras_matrix.uploader.local.parquet import LONGEST_LINE_BYTES, engine, text

HEADER = "trace_graph"
NAME = "rank{}.parquet"
COLUMNS: Mapping[str, str] = {
    "number": "BIGINT",
    "rank": "BIGINT",
    "lane": "VARCHAR",
    "kind": "VARCHAR",
    "name": "VARCHAR",
    "durations_ns": "BIGINT[]",
    "gaps_ns": "BIGINT[]",
    "starts_ns": "BIGINT[]",
    "depends": "BIGINT[]",
    "depends_before": "BIGINT[]",
    "phase": "VARCHAR",
    "layer": "VARCHAR",
    "bytes": "BIGINT",
    "flops": "DOUBLE",
    "dtype": "VARCHAR",
    "shape": "BIGINT[]",
    "cores": "DOUBLE",
    "gradient_of": "VARCHAR",
    "collective_group": "VARCHAR",
    "collective_ordinal": "BIGINT",
    "collective_operation": "VARCHAR",
    "collective_ranks": "BIGINT[]",
    "collective_bytes": "BIGINT",
    "collective_tensors": "BIGINT[]",
    "collective_tensor_layers": "VARCHAR[]",
}


class GraphFileDamaged(ValueError):
    """A file is not a stored trace graph; the message names it and says what is wrong."""


def write(folder: Path, rank: int, header: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write the operations of a rank, replacing an earlier file, and return its path. Raises OSError."""
    target = folder / NAME.format(rank)
    with tempfile.TemporaryDirectory(prefix="graph-") as scratch, files.replacing(target) as temporary:
        lines = Path(scratch) / "rows.jsonl"
        with lines.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        types_sql = ", ".join(f"{text(name)}: {text(kind)}" for name, kind in COLUMNS.items())
        source_sql = (
            f"read_json({text(str(lines))}, format = 'newline_delimited', columns = {{{types_sql}}}, "
            f"maximum_object_size = {LONGEST_LINE_BYTES})"
        )
        options_sql = f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{HEADER}: {text(header)}}})"
        with engine() as connection:
            connection.execute(
                f"COPY (SELECT * FROM {source_sql} ORDER BY number) TO {text(str(temporary))} {options_sql}"
            )
    return target


def header_of(path: Path) -> str:
    """Return the header of a file. Raises `GraphFileDamaged`."""
    import duckdb

    try:
        files.read_range(os.path.realpath(path), 0, 1)  # DuckDB would wait for a pipe
    except (files.UnfitFile, OSError) as error:
        raise GraphFileDamaged(f"{path}: cannot be read: {error}") from error
    try:
        with engine() as connection:
            row = connection.execute(
                "SELECT value FROM parquet_kv_metadata($file) WHERE key = $key",
                {"file": str(path), "key": HEADER.encode()},
            ).fetchone()
    except duckdb.Error as error:
        raise GraphFileDamaged(f"{path}: cannot be read as Parquet: {_first_line(error)}") from error
    if row is None:
        raise GraphFileDamaged(f"{path}: is a Parquet file, but not a stored trace graph")
    return bytes(row[0]).decode()


def rows_of(paths: Sequence[Path]) -> list[tuple[Any, ...]]:
    """Return the operations of these files in the order of their numbers, as values of `COLUMNS`.

    Raises `GraphFileDamaged`.
    """
    import duckdb

    names_sql = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in COLUMNS.items())
    paths_sql = ", ".join(text(str(path)) for path in paths)
    try:
        with engine() as connection:
            return connection.execute(f"SELECT {names_sql} FROM read_parquet([{paths_sql}]) ORDER BY number").fetchall()
    except duckdb.Error as error:
        paths_text = ", ".join(str(path) for path in paths)
        raise GraphFileDamaged(f"{paths_text}: cannot be read as a stored trace graph: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
