"""The embedded warehouse: Parquet files beside the results, queried with DuckDB in memory; nothing to start.

    results/warehouse/
      .lock                      held (flock) while rows are taken or files made one
      manifest.json              the files that count, by table (`uploader.manifest`)
      <table>/<name>.parquet     never changed once it is named in the manifest
      damaged/                   files that were set aside (`uploader.rebuild`)

Promise: a row is taken once, by its key, whatever is sent twice or overlaps; after a crash at any point the manifest
names the files from before or from after, and what it does not name is removed by the next merge. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.files import replacing
from uploader import damage, manifest, parquet, rebuild
from uploader.errors import RowsRefused, WarehouseFailure
from uploader.manifest import Files
from uploader.outbox import Batch
from uploader.process import not_writable
from uploader.schema import TABLES, Column, Table
from uploader.sql import to_duckdb, translated_views
from uploader.warehouse import Actual, Answer, Scalar

if TYPE_CHECKING:
    import duckdb

MOST_FILES = 24  # of a table; from here on small ones are made one
TRIES = 5


def _free_name(stem: str, names: Sequence[str]) -> str:
    """Return a name for a file: a batch that is sent again may find rows missing that its first file never had."""
    name, number = f"{stem}.parquet", 0
    while name in names:
        number += 1
        name = f"{stem}-{number}.parquet"
    return name


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
        self._shown: Files | None = None
        self._shut_in = False

    @property
    def address(self) -> str:
        """Its address."""
        return f"local:{self.folder}"

    def create(self) -> list[str]:
        """Make the folder; views and tables are made whenever it is opened. Raises `ManifestDamaged`."""
        with self._locked():
            made = [] if manifest.read(self.folder) is not None else [str(self.folder)]
            if made:
                manifest.write(self.folder, manifest.empty())
        return made

    def actual(self, table: Table) -> Actual | None:
        """Return the columns of a table's definition: what a file does not have is NULL in it."""
        if manifest.read(self.folder) is None:
            return None
        return {column.name: (str(column.type), str(column.mode)) for column in table.columns}

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Do nothing: none can be missing."""

    def merge(self, batch: Batch) -> int:
        """Take a batch: its rows whose keys are not there yet go into one new file.

        Raises `RowsRefused` only for what is wrong with the batch itself, and `FileDamaged` if a file of its table
        cannot be read: which rows that file has is not known, so that none can be added to the table.
        """
        with self._locked():
            files = self._files()
            self._sweep(files)
            self._take(batch)
            name = _free_name(batch.sha, files[batch.table.name])
            with self._written(batch.table, name) as aside:
                paths = self._paths(batch.table, files[batch.table.name])
                new = parquet.write_new(self._engine(), batch.table, paths, str(aside))
            if new:
                files[batch.table.name].append(name)
                manifest.write(self.folder, files)
            self._compact(batch.table, files)
        return new

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer a SELECT; a reader that a compaction overtakes looks again.

        Raises `FileDamaged` if a file cannot be read: an answer over the others would be wrong without saying so.
        """
        import duckdb

        translated = to_duckdb(sql)
        for left in reversed(range(TRIES)):
            try:
                cursor = self._opened().execute(translated, dict(parameters or {}))
                return _answer(cursor.description or [], cursor.fetchall())
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
                raise WarehouseFailure(f"the query failed: {str(error).splitlines()[0]}") from error
            except duckdb.Error as error:
                self._shown = None
                if left and isinstance(error, duckdb.IOException):
                    continue
                raise self._explained(TABLES, error, f"the query failed: {str(error).splitlines()[0]}") from error
        raise AssertionError("the last try returns or raises")

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return None: reading costs nothing. Raises `BadInput` for what is no single SELECT."""
        to_duckdb(sql)
        return None

    def close(self) -> None:
        """Close the engine."""
        if self._connection is not None:
            self._connection.close()
            self._connection, self._shown = None, None

    def repair(self) -> list[str]:
        """Set damaged files aside and rebuild a damaged manifest; return what was done, one line each."""
        import duckdb

        with self._locked():
            try:
                lines = rebuild.repair(self.folder)
            except (duckdb.Error, OSError) as error:
                raise WarehouseFailure(f"{self.folder}: cannot be repaired: {error}; run the same again") from error
            self._sweep(self._files())
        self._shown = None
        return lines

    def check_files(self) -> None:
        """Raise `FileDamaged` if a file is missing or cut off. What is inside of the files is not read."""
        with self._locked():
            if found := damage.incomplete(self.folder):
                raise damage.refusal(found)

    def kept_from(self) -> str | None:
        """Return None: rows are kept for ever."""
        return None

    def is_empty(self) -> bool:
        """Return whether no file counts."""
        return not any((manifest.read(self.folder) or {}).values())

    def _files(self) -> Files:
        return manifest.read(self.folder) or manifest.empty()

    def _paths(self, table: Table, files: Sequence[str]) -> list[str]:
        return [str(self.folder / table.name / name) for name in files]

    def _take(self, batch: Batch) -> None:
        """Read a batch, by itself: what fails here is the fault of its rows. Raises `RowsRefused`."""
        import duckdb

        try:
            parquet.take(self._engine(), batch.table, str(batch.path))
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
            raise RowsRefused(f"{batch.name}: {str(error).splitlines()[0]}") from error
        except duckdb.Error as error:
            text = f"{batch.path}: cannot be read: {str(error).splitlines()[0]}; push again"
            raise self._explained([], error, text) from error

    def _compact(self, table: Table, files: dict[str, list[str]]) -> None:
        """Make one file of a table's small ones where they are many: a query pays for each."""
        if len(files[table.name]) <= MOST_FILES:
            return
        small = [name for name in files[table.name] if self._size(table, name) < parquet.LARGE_BYTES]
        if len(small) < 2:
            return
        name = hashlib.sha256("\n".join(small).encode()).hexdigest() + ".parquet"
        with self._written(table, name) as aside:
            parquet.write_one(self._engine(), table, self._paths(table, small), str(aside))
        files[table.name] = [*(one for one in files[table.name] if one not in small), name]
        manifest.write(self.folder, files)
        self._sweep(files)

    def _size(self, table: Table, name: str) -> int:
        return (self.folder / table.name / name).stat().st_size

    def _sweep(self, files: Mapping[str, list[str]]) -> None:
        """Remove the files that no manifest names: those of a killed merge, and those made one."""
        manifest.sweep(self.folder)
        for name, kept in files.items():
            for path in (self.folder / name).glob("*"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, table: Table, name: str) -> Iterator[Path]:
        """Give a path to write a file of a table to. Raises `WarehouseFailure`."""
        import duckdb

        target = self.folder / table.name / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary:
                yield temporary
        except (duckdb.Error, OSError) as error:
            text = f"{target}: cannot be written: {error}; nothing is lost, push again"
            raise self._explained([table], error, text) from error

    def _explained(self, tables: Sequence[Table], error: Exception, text: str) -> WarehouseFailure:
        """Return the failure that names damaged files of these tables; if there are none, one with that text."""
        import duckdb

        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self.close()  # such an engine answers nothing any more
        if isinstance(error, duckdb.Error) and (found := damage.damages(self.folder, tables)):
            return damage.refusal(found)
        return WarehouseFailure(text)

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
            if self._shut_in:
                self.shut_in()
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
        self._shut_in = False
        engine = self._engine()
        self._shut_in = True
        engine.execute(f"SET allowed_directories = [{parquet.text(str(self.folder) + '/')}]")
        engine.execute("SET enable_external_access = false")
        engine.execute("SET lock_configuration = true")
