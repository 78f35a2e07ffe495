"""An in-memory copy of the rows that the dashboard's questions read from a warehouse, from one day on.

A snapshot is read with one SELECT per table, bounded by day, of the needed columns only; it answers the questions as
the warehouse would for those days, and does not query the warehouse again. An incomplete snapshot retains its tables:
the next attempt reads only the missing ones.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.dashboards.live.app.needed import Needed
from keras_matrix.dashboards.live.questions import Reader
from keras_matrix.uploader.errors import WarehouseFailure
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.schema import BY_NAME, Table
from keras_matrix.uploader.sql import to_duckdb, translated_views
from keras_matrix.uploader.warehouse import Answer, Scalar

if TYPE_CHECKING:
    import duckdb


class Snapshot:
    """Tables and views in an in-memory engine, for one thread at a time."""

    def __init__(self, needed: Needed, since: str) -> None:
        self.since = since
        self._needed = needed
        self._read: set[str] = set()
        self._engine = parquet.engine()

    def fill(self, warehouse: Reader) -> None:
        """Read the missing tables. Raises `UploadError`; tables that were already read are retained."""
        import duckdb

        try:
            for name, columns in self._needed.columns.items():
                if name not in self._read:
                    _load(self._engine, BY_NAME[name], warehouse.query(statement(name, columns), {"since": self.since}))
                    self._read.add(name)
            sql = translated_views()
            for name in self._needed.views:
                self._engine.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql[name]}')
        except (duckdb.Error, OSError) as error:
            raise WarehouseFailure(
                f"the rows cannot be copied into memory: {str(error).splitlines()[0]}; check the space in "
                f"{tempfile.gettempdir()}, where they are written to a file"
            ) from error

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer one SELECT in BigQuery's dialect. Raises `WarehouseFailure`."""
        import duckdb

        try:
            cursor = self._engine.execute(to_duckdb(sql), dict(parameters or {}))
        except duckdb.Error as error:
            raise WarehouseFailure(f"the query failed: {str(error).splitlines()[0]}") from error
        return Answer(tuple(str(one[0]) for one in cursor.description or []), cursor.fetchall())


def statement(table: str, columns: tuple[str, ...]) -> str:
    """Return the SELECT that reads columns of a table from the day @since on."""
    return f"SELECT {', '.join(columns)} FROM {table} WHERE day >= CAST(@since AS DATE)"


def _load(engine: duckdb.DuckDBPyConnection, table: Table, answer: Answer) -> None:
    """Create a table from an answer, using a file: inserting row by row takes 100 times as long."""
    types = {name: parquet.type_of(table.column(name)) for name in answer.columns}
    shown = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    engine.execute(f'CREATE OR REPLACE TABLE "{table.name}" ({shown})')
    read = ", ".join(f"{parquet.text(name)}: {parquet.text(kind)}" for name, kind in types.items())
    with tempfile.TemporaryDirectory(prefix="keras-benchmark-") as folder:
        path = Path(folder) / "rows.ndjson"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_lines(answer))
        engine.execute(
            f'INSERT INTO "{table.name}" SELECT * FROM read_json({parquet.text(str(path))}, '
            f"format = 'newline_delimited', columns = {{{read}}}, maximum_object_size = {parquet.LONGEST_LINE_BYTES})"
        )


def _lines(answer: Answer) -> Iterator[str]:
    """Yield the rows as JSON; a number that is not finite becomes null."""
    for row in answer.dicts():
        yield json.dumps({name: None if _not_finite(v) else v for name, v in row.items()}, default=_text) + "\n"


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
