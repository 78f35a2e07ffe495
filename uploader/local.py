"""The embedded warehouse: Parquet files beside the results, queried with DuckDB in memory; nothing to start.

    results/warehouse/
      .lock                      held (flock) while rows are taken or files made one
      manifest.json              the files that count, by table; replaced whole, so that a merge is one step
      <table>/<name>.parquet     never changed once it is named in the manifest

Promise: a row is taken once, by its key, whatever is sent twice or overlaps; after a crash at any point the manifest
names the files from before or from after, and what it does not name is removed by the next merge. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.codec import CodecError, loads
from records.peaks import put
from records.store import StoreFailure
from uploader import parquet
from uploader.errors import RowsRefused, WarehouseFailure
from uploader.outbox import Batch
from uploader.process import not_writable
from uploader.schema import TABLES, Column, Table
from uploader.sql import to_duckdb, translated_views
from uploader.warehouse import Actual, Answer, Scalar

if TYPE_CHECKING:
    import duckdb

MANIFEST_VERSION = 1
MOST_FILES = 24  # of a table; from here on small ones are made one
TRIES = 5


def _answer(described: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> Answer:
    """Return an answer with JSON as what it says, as BigQuery's client gives it; the engine gives its text."""
    open_ended = {place for place, one in enumerate(described) if str(one[1]) == "JSON"}
    if open_ended:
        rows = [
            tuple(json.loads(v) if place in open_ended and v is not None else v for place, v in enumerate(row))
            for row in rows
        ]
    return Answer(tuple(str(one[0]) for one in described), rows)


class LocalWarehouse:
    """Parquet files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._shown: dict[str, list[str]] | None = None

    @property
    def address(self) -> str:
        """Its address."""
        return f"local:{self.folder}"

    def create(self) -> list[str]:
        """Make the folder; views and tables are made whenever it is opened."""
        with self._locked():
            made = [] if self._path.exists() else [str(self.folder)]
            if made:
                self._commit({table.name: [] for table in TABLES})
        return made

    def actual(self, table: Table) -> Actual | None:
        """Return the columns of a table's definition: what a file does not have is NULL in it."""
        if not self._path.exists():
            return None
        return {column.name: (str(column.type), str(column.mode)) for column in table.columns}

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Do nothing: none can be missing."""

    def merge(self, batch: Batch) -> int:
        """Take a batch: its rows whose keys are not there yet go into one new file."""
        with self._locked():
            files = self._files()
            self._sweep(files)
            new = self._write_new(batch, files[batch.table.name])
            if new:
                files[batch.table.name].append(f"{batch.sha}.parquet")
                self._commit(files)
            self._compact(batch.table, files)
        return new

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer a SELECT; a reader that a compaction overtakes looks again."""
        import duckdb

        translated = to_duckdb(sql)
        for left in reversed(range(TRIES)):
            try:
                cursor = self._opened().execute(translated, dict(parameters or {}))
                return _answer(cursor.description or [], cursor.fetchall())
            except duckdb.IOException as error:
                self._shown = None
                if not left:
                    raise WarehouseFailure(f"{self.folder}: cannot be read: {error}") from error
            except duckdb.Error as error:
                raise WarehouseFailure(f"the query failed: {str(error).splitlines()[0]}") from error
        raise AssertionError("the last try returns or raises")

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return None: reading costs nothing. Raises `BadInput` for what is no single SELECT."""
        to_duckdb(sql)
        return None

    def close(self) -> None:
        """Close the engine."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _path(self) -> Path:
        return self.folder / "manifest.json"

    def _files(self) -> dict[str, list[str]]:
        try:
            told = loads(self._path.read_bytes())
        except FileNotFoundError:
            told = {"version": MANIFEST_VERSION, "tables": {}}
        except (OSError, CodecError) as error:
            raise self._damaged(str(error)) from error
        if not isinstance(told, dict) or not isinstance(told.get("version"), int):
            raise self._damaged("it holds no version")
        if told["version"] > MANIFEST_VERSION:
            raise WarehouseFailure(
                f"{self._path}: version {told['version']} is newer than {MANIFEST_VERSION}; update this program"
            )
        return {table.name: list(told["tables"].get(table.name, [])) for table in TABLES}

    def _damaged(self, why: str) -> WarehouseFailure:
        return WarehouseFailure(
            f"{self._path}: cannot be read: {why}; remove {self.folder} and the outbox, and push again"
        )

    def _paths(self, table: Table, files: Sequence[str]) -> list[str]:
        return [str(self.folder / table.name / name) for name in files]

    def _commit(self, files: Mapping[str, list[str]]) -> None:
        try:
            put(self._path, json.dumps({"version": MANIFEST_VERSION, "tables": files}, indent=1) + "\n")
        except StoreFailure as error:
            raise WarehouseFailure(str(error)) from error

    def _write_new(self, batch: Batch, files: Sequence[str]) -> int:
        target = self.folder / batch.table.name / f"{batch.sha}.parquet"
        if target.name in files:
            return 0
        with self._written(target) as aside:
            return parquet.write_new(
                self._engine(), batch.table, str(batch.path), self._paths(batch.table, files), str(aside)
            )

    def _compact(self, table: Table, files: dict[str, list[str]]) -> None:
        """Make one file of a table's small ones where they are many: a query pays for each."""
        if len(files[table.name]) <= MOST_FILES:
            return
        small = [name for name in files[table.name] if self._size(table, name) < parquet.LARGE_BYTES]
        if len(small) < 2:
            return
        name = hashlib.sha256("\n".join(small).encode()).hexdigest() + ".parquet"
        with self._written(self.folder / table.name / name) as aside:
            parquet.write_one(self._engine(), table, self._paths(table, small), str(aside))
        files[table.name] = [*(one for one in files[table.name] if one not in small), name]
        self._commit(files)
        self._sweep(files)

    def _size(self, table: Table, name: str) -> int:
        return (self.folder / table.name / name).stat().st_size

    def _sweep(self, files: Mapping[str, list[str]]) -> None:
        """Remove the files that no manifest names: those of a killed merge, and those made one."""
        for name, kept in files.items():
            for path in (self.folder / name).glob("*"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, target: Path) -> Iterator[Path]:
        """Give a name to write to; what was written there gets its own name once it is on disk."""
        import duckdb

        aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            yield aside
            if aside.exists():
                parquet.sync(aside)
                aside.replace(target)
                parquet.sync(target.parent)
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
            raise RowsRefused(f"{target.name}: {str(error).splitlines()[0]}") from error
        except (duckdb.Error, OSError) as error:
            raise WarehouseFailure(f"{target}: cannot be written: {error}; nothing is lost, push again") from error
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / ".lock").open("a")
        except OSError as error:
            raise WarehouseFailure(f"{self.folder}: cannot be written: {not_writable(self.folder, error)}") from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _engine(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = parquet.engine()
        return self._connection

    def _opened(self) -> duckdb.DuckDBPyConnection:
        """Return the engine with views over the files that count now."""
        files = self._files()
        engine = self._engine()
        if files != self._shown:
            for table in TABLES:
                parquet.show(engine, table, self._paths(table, files[table.name]))
            for name, sql in translated_views().items():
                engine.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql}')
            self._shown = files
        return engine

    def shut_in(self) -> None:
        """Let no query read or write a file other than the warehouse's own, from now on."""
        engine = self._engine()
        engine.execute(f"SET allowed_directories = [{parquet.text(str(self.folder) + '/')}]")
        engine.execute("SET enable_external_access = false")
        engine.execute("SET lock_configuration = true")
