"""The local warehouse: Parquet files next to the results, queried with in-memory DuckDB; there is no server.

    results/warehouse/
      .lock                      locked (flock) while rows are added or files compacted
      manifest.json              the current files of each table (`uploader.local.manifest`)
      <table>/<name>.parquet     immutable once the manifest names it
      damaged/                   files that were set aside (`uploader.local.damaged_files`)

One row per key is stored, also if batches overlap or are sent twice. After a crash at any point the manifest names the
files from before or after the change, and the next merge removes files that it does not name. Readers take no lock.
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

from keras_matrix.records.files import UnfitFile, make_folder, open_lock, replacing
from keras_matrix.uploader.errors import RowsRefused, WarehouseFailure, not_writable
from keras_matrix.uploader.local import damaged_files, manifest, parquet
from keras_matrix.uploader.local.manifest import Files
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import TABLES, Table, TableColumn
from keras_matrix.uploader.sql import to_duckdb, translated_views, views
from keras_matrix.uploader.warehouse import Actual, QueryResult, RowHashes, Scalar, read_row_hashes

if TYPE_CHECKING:
    import duckdb

MOST_FILES = 24  # of a table; above it, small files are compacted
TRIES = 5
CATALOGS = ("information_schema", "duckdb_", "pg_", "sqlite_")  # where a query finds the names of all views


def _free_name(stem: str, names: Sequence[str]) -> str:
    """Return an unused file name: a batch that is sent again may add rows that its first file did not have."""
    name, number = f"{stem}.parquet", 0
    while name in names:
        number += 1
        name = f"{stem}-{number}.parquet"
    return name


def _answer(described: list[tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> QueryResult:
    """Return a query's result with JSON columns parsed, as BigQuery's client returns them; DuckDB returns text."""
    parsed = {index for index, column in enumerate(described) if str(column[1]) == "JSON"}
    if parsed:
        rows = [
            tuple(json.loads(v) if index in parsed and v is not None else v for index, v in enumerate(row))
            for row in rows
        ]
    return QueryResult(tuple(str(column[0]) for column in described), rows)


class LocalWarehouse:
    """A warehouse of Parquet files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._shown: Files = {}
        self._has_views = False
        self._file_access_restricted = False

    @property
    def address(self) -> str:
        """The address, local:FOLDER."""
        return f"local:{self.folder}"

    def create(self) -> list[str]:
        """Create the folder and an empty manifest if they are missing. Raises `ManifestDamaged`."""
        with self._locked():
            created = [] if manifest.read(self.folder) is not None else [str(self.folder)]
            if created:
                manifest.write(self.folder, manifest.empty())
        return created

    def actual(self, table: Table) -> Actual | None:
        """Return the columns of a table's definition: a column that a file lacks reads as NULL."""
        if manifest.read(self.folder) is None:
            return None
        return {column.name: (str(column.type), str(column.mode)) for column in table.columns}

    def add_columns(self, table: Table, columns: Sequence[TableColumn]) -> None:
        """Do nothing: no column can be missing."""

    def merge(self, batch: Batch) -> int:
        """Write the rows of a batch whose keys do not exist yet to one new file; return how many.

        Raises `RowsRefused` only for an error in the batch, and `FileDamaged` if a file of its table cannot be read:
        the keys in that file are unknown, so no row can be added to the table.
        """
        with self._locked():
            files = self._files()
            self._sweep(files)
            self._load(batch)
            name = _free_name(batch.sha, files[batch.table.name])
            with self._written(batch.table, name) as temporary:
                paths = self._paths(batch.table, files[batch.table.name])
                new = parquet.write_new(self._engine(), batch.table, paths, str(temporary))
            if new:
                files[batch.table.name].append(name)
                manifest.write(self.folder, files)
            self._compact(batch.table, files)
        return new

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Run a SELECT, again if a compaction has replaced its files in the meantime.

        Raises `FileDamaged` if a file cannot be read: a result from the other files would be silently incomplete.
        """
        import duckdb

        translated = to_duckdb(sql)
        for tries_left in reversed(range(TRIES)):
            try:
                cursor = self._opened(translated).execute(translated, dict(parameters or {}))
                return _answer(cursor.description or [], cursor.fetchall())
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
                raise WarehouseFailure(f"the query failed: {str(error).splitlines()[0]}") from error
            except duckdb.Error as error:
                self._shown = {}
                if tries_left and isinstance(error, duckdb.IOException):
                    continue
                raise self._explained(TABLES, error, f"the query failed: {str(error).splitlines()[0]}") from error
        raise AssertionError("the last attempt returns or raises")

    def row_hashes(self, table: Table, days: tuple[str, str]) -> RowHashes:
        """Return the hash of each row of a table from a first to a last day, by its key."""
        return read_row_hashes(self, table, days)

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return None: reading is free. Raises `BadInput` unless the query is a single SELECT."""
        to_duckdb(sql)
        return None

    def close(self) -> None:
        """Close the engine."""
        if self._connection is not None:
            self._connection.close()
            self._connection, self._shown = None, {}

    def repair(self) -> list[str]:
        """Set damaged files aside and rebuild a damaged manifest; return a line for each repair."""
        import duckdb

        with self._locked():
            try:
                lines = damaged_files.repair(self.folder)
            except (duckdb.Error, OSError) as error:
                text = f"{self.folder}: cannot be repaired: {error}; run the same command again"
                raise WarehouseFailure(text) from error
            self._sweep(self._files())
        self._shown = {}
        return lines

    def check_files(self) -> None:
        """Raise `FileDamaged` if a file is missing or truncated. Contents are not read."""
        with self._locked():
            if truncated := damaged_files.find_truncated(self.folder):
                raise damaged_files.damaged_error(truncated)

    def retained_from(self) -> str | None:
        """Return None: rows never expire."""
        return None

    def is_empty(self) -> bool:
        """Return whether the manifest names no file."""
        return not any((manifest.read(self.folder) or {}).values())

    def _files(self) -> Files:
        files = manifest.read(self.folder) or manifest.empty()
        if unfit := damaged_files.find_unfit(self.folder, files):
            raise damaged_files.damaged_error(unfit)
        return files

    def _paths(self, table: Table, files: Sequence[str]) -> list[str]:
        return [str(self.folder / table.name / name) for name in files]

    def _load(self, batch: Batch) -> None:
        """Load a batch separately from the merge, so that errors can be attributed to it. Raises `RowsRefused`."""
        import duckdb

        try:
            parquet.load_lines(self._engine(), batch.table, str(batch.path))
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
            raise RowsRefused(f"{batch.name}: {str(error).splitlines()[0]}") from error
        except duckdb.Error as error:
            text = f"{batch.path}: cannot be read: {str(error).splitlines()[0]}; push again"
            raise self._explained([], error, text) from error

    def _compact(self, table: Table, files: dict[str, list[str]]) -> None:
        """Merge a table's small files into one if there are many: each file slows queries down."""
        if len(files[table.name]) <= MOST_FILES:
            return
        table_folder = self.folder / table.name
        small = [name for name in files[table.name] if (table_folder / name).stat().st_size < parquet.LARGE_BYTES]
        if len(small) < 2:
            return
        name = hashlib.sha256("\n".join(small).encode()).hexdigest() + ".parquet"
        with self._written(table, name) as temporary:
            parquet.write_merged(self._engine(), table, self._paths(table, small), str(temporary))
        files[table.name] = [*(file_name for file_name in files[table.name] if file_name not in small), name]
        manifest.write(self.folder, files)
        self._sweep(files)

    def _sweep(self, files: Mapping[str, list[str]]) -> None:
        """Remove the files that the manifest does not name: those of a killed merge, and compacted ones."""
        manifest.sweep(self.folder)
        for name, current in files.items():
            for path in (self.folder / name).glob("*"):
                if path.name not in current:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, table: Table, name: str) -> Iterator[Path]:
        """Yield a temporary path for a new file of a table. Raises `WarehouseFailure`."""
        import duckdb

        target = self.folder / table.name / name
        try:
            make_folder(target.parent)
            with replacing(target) as temporary:
                yield temporary
        except (duckdb.Error, OSError) as error:
            text = f"{target}: cannot be written: {error}; nothing is lost, push again"
            raise self._explained([table], error, text) from error

    def _explained(self, tables: Sequence[Table], error: Exception, text: str) -> WarehouseFailure:
        """Return the failure for damaged files of these tables; if no file is damaged, one with `text`."""
        import duckdb

        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self.close()  # the connection is unusable after such an error
        if isinstance(error, duckdb.Error) and (damaged := damaged_files.find_damaged(self.folder, tables)):
            return damaged_files.damaged_error(damaged)
        return WarehouseFailure(text)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            make_folder(self.folder)
            handle = os.fdopen(open_lock(self.folder / ".lock"), "r+")
        except UnfitFile as error:
            raise WarehouseFailure(f"{self.folder / '.lock'}: is {error}; remove it") from error
        except OSError as error:
            raise WarehouseFailure(f"{self.folder}: cannot be written: {not_writable(self.folder, error)}") from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _engine(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = parquet.engine(self.folder if self._file_access_restricted else None)
        return self._connection

    def _opened(self, sql: str) -> duckdb.DuckDBPyConnection:
        """Return the connection with the current files of the tables, and with the views, that a query may name."""
        files = self._files()
        engine = self._engine()
        query = sql.lower()
        needs_views = any(name in query for name in (*views(), *CATALOGS))
        for table in TABLES:
            current_files = files[table.name]
            if (needs_views or table.name in query) and self._shown.get(table.name) != current_files:
                parquet.create_view(engine, table, self._paths(table, current_files))
                self._shown[table.name], self._has_views = current_files, False
        if needs_views and not self._has_views:
            for name, view in translated_views().items():
                engine.execute(f'CREATE OR REPLACE VIEW "{name}" AS {view}')
            self._has_views = True
        return engine

    def restrict_file_access(self) -> None:
        """Prevent all later queries from accessing files outside of the warehouse."""
        self._file_access_restricted = True
        self.close()
