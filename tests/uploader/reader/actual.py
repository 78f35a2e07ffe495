"""Reads the rows of a warehouse: Parquet files with DuckDB, or a dataset with Google's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.uploader.reader.tables import Row, Table, documented

if TYPE_CHECKING:
    from google.cloud import bigquery

Found = dict[str, list[Row]]
TIMEOUT_S = 120.0


def local_rows(folder: Path) -> Found:
    """Return the rows of each table in the files that the manifest of a local warehouse names."""
    import duckdb

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    with duckdb.connect(":memory:") as engine:
        engine.execute("SET TimeZone = 'UTC'")
        found: Found = {}
        for table in documented():
            files = [str(folder / table.name / name) for name in manifest["tables"].get(table.name, [])]
            found[table.name] = [row for name in files for row in _rows_of_file(engine, table, name)]
    return found


def _rows_of_file(engine: Any, table: Table, file: str) -> list[Row]:
    cursor = engine.execute("SELECT * FROM read_parquet($file)", {"file": file})
    names = [one[0] for one in cursor.description]
    return [table.row(dict(zip(names, values, strict=True))) for values in cursor.fetchall()]


def dataset_rows(client: bigquery.Client, dataset: str) -> Found:
    """Return the rows of each table of a dataset (`PROJECT.DATASET`), for an append-only one those of its views."""
    found: Found = {}
    for table in documented():
        rows = client.query(f"SELECT * FROM `{dataset}.{table.name}`", timeout=TIMEOUT_S).result(timeout=TIMEOUT_S)
        found[table.name] = [table.row(dict(row.items())) for row in rows]
    return found


def client_of(url: str, project: str) -> bigquery.Client:
    """Return a client without credentials for an emulator of the service."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import bigquery

    return bigquery.Client(project, credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=url))
