"""Queries answered by ZetaSQL, Google's own analyser and reference engine, over the rows of a local warehouse."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.schema import APPENDED, ColumnMode, Table, TableColumn, Type
from keras_matrix.uploader.sql import EVERY_DAY, since

PLAIN = (Type.STRING, Type.INT64, Type.FLOAT64, Type.BOOL)


def answers(
    local: LocalWarehouse | None, tables: Sequence[Table], views: Mapping[str, str], queries: Mapping[str, str]
) -> dict[str, Any]:
    """Return the engine's answer to each query over these tables and views, without columns of arrays and times.

    Without a local warehouse a query is only analysed: the answer is its columns, or the error.

    Each table is there under the name that it has in an append-only dataset, too.
    """
    python = os.environ.get("ZETASQL_PYTHON")
    if not python:
        pytest.skip("no ZetaSQL: ci/emulator run -- .venv/bin/python -m pytest -m emulator")
    asked: dict[str, Any] = {"tables": {}, "queries": {}, "rows": local is not None}
    parts = []
    for table in tables:
        columns = [
            one for one in table.columns if one.mode is not ColumnMode.REPEATED and one.type is not Type.TIMESTAMP
        ]
        given = ", ".join(_plain(column) for column in columns)
        rows = [list(row) for row in local.query(f"SELECT {given} FROM {table.name}").rows] if local else []
        kinds = [[one.name, one.type if one.type in PLAIN else "STRING"] for one in columns]
        asked["tables"][f"given_{table.name}"] = {"columns": kinds, "rows": rows}
        parts.append(f"{table.name} AS (SELECT {', '.join(map(_typed, columns))} FROM given_{table.name})")
        parts.append(f"{table.name}{APPENDED} AS (SELECT * FROM {table.name})")
    parts += [f"{name} AS ({since(sql, EVERY_DAY)})" for name, sql in views.items()]
    for name, sql in queries.items():
        head, rest = (",", sql.removeprefix("WITH")) if sql.startswith("WITH") else ("", sql)
        asked["queries"][name] = f"WITH {', '.join(parts)}{head}\n{rest}"
    command = [python, str(Path(__file__).parent / "reference.py")]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _plain(column: TableColumn) -> str:
    return column.name if column.type in PLAIN else f"CAST({column.name} AS STRING) AS {column.name}"


def _typed(column: TableColumn) -> str:
    """A column as in BigQuery, from the plain one in the reference engine."""
    if column.type is Type.DATE:
        return f"CAST({column.name} AS DATE) AS {column.name}"
    return f"PARSE_JSON({column.name}) AS {column.name}" if column.type is Type.JSON else column.name
