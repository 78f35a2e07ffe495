"""Finds unreadable files of the local warehouse, sets them aside, and rebuilds a missing or damaged manifest.

Every value of a file is read. A value that was replaced by another valid one is detected only by `uploader verify
--values`.

    warehouse/damaged/<table>/<name>.parquet     a damaged file, unchanged; nothing is deleted

A damaged file is removed from the manifest, and `push --repair` then sends the missing rows. A manifest is rebuilt from
the Parquet files in the tables' folders with one row per key: a killed merge or compaction may have left rows in
two files. If a file in `damaged` can be read again, such as a copy from a backup, its rows with missing keys are added.

If a repair is killed at any point, the next one completes it.

A module of its own: it is the repair of files, beside reading and writing them.
"""

from __future__ import annotations

import errno
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.records.files import NOT_REGULAR, UnfitFile, read_range, replacing, sync
from keras_matrix.uploader.errors import FileDamaged, ManifestDamaged, WarehouseFailure
from keras_matrix.uploader.local import manifest, parquet
from keras_matrix.uploader.local.manifest import Files
from keras_matrix.uploader.schema import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    import duckdb

MISSING = "is missing"
MOST_LISTED = 5
PARQUET_END = b"PAR1"
DAMAGED = "damaged"
WITHOUT_RECORD = (
    "rows of files that were set aside are restored from the records; to restore rows without a record, such as "
    "imported ones, replace the file that was set aside by an intact copy and run the same command again"
)


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that the manifest names and that cannot be read."""

    table: Table
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def find_damaged(folder: Path, tables: Sequence[Table] = TABLES) -> list[DamagedFile]:
    """Return the damaged files of these tables. Raises `WarehouseFailure`."""
    reader, named_files = FileTester(), _named(folder, tables)
    damaged = [
        DamagedFile(table, path, why)
        for table, path in named_files
        if (why := reader.unreadable(table, path)) is not None
    ]
    return [
        damaged_file for damaged_file in damaged if (damaged_file.table, damaged_file.path) in _named(folder, tables)
    ]  # a compaction may have come between


def find_truncated(folder: Path) -> list[DamagedFile]:
    """Return the files that are missing or truncated; reads the last bytes of each. Raises `WarehouseFailure`."""
    examined = [(table, path, _truncation(path)) for table, path in _named(folder, TABLES)]
    return [DamagedFile(table, path, reason) for table, path, reason in examined if reason is not None]


def find_unfit(folder: Path, files: Mapping[str, Sequence[str]]) -> list[DamagedFile]:
    """Return what is in the place of a file and is none, such as a link or a pipe, which a query would wait for."""
    unfit = []
    for table in TABLES:
        for name in files[table.name]:
            path = folder / table.name / name
            with suppress(OSError):  # such as of a missing file, which is reported when it is read
                if not stat.S_ISREG(path.lstat().st_mode):
                    unfit.append(DamagedFile(table, path, f"is {NOT_REGULAR}"))
    return unfit


def damaged_error(damaged: Sequence[DamagedFile]) -> FileDamaged:
    """Return the error for damaged files."""
    files_text = "\n  ".join(map(str, damaged[:MOST_LISTED]))
    more_text = f"\n  and {len(damaged) - MOST_LISTED} more" if len(damaged) > MOST_LISTED else ""
    return FileDamaged(
        f"the warehouse has {len(damaged)} damaged file{'s' if len(damaged) > 1 else ''}:\n  {files_text}{more_text}\n"
        "queries fail and new rows of its table stay pending until the file is set aside and its rows are sent "
        "again from the records with: uploader push --repair, with the same --to and --results"
    )


class FileTester:
    """Tests whether files can be read, with one DuckDB connection."""

    def __init__(self) -> None:
        self._engine: duckdb.DuckDBPyConnection | None = None

    def unreadable(self, table: Table, path: Path) -> str | None:
        """Return why a file cannot be read with a table's schema, None if it can.

        Raises `WarehouseFailure` if the cause is not the file, such as missing permissions or memory.
        """
        import duckdb

        try:
            read_range(path, 0, len(PARQUET_END))
            self._engine = self._engine or parquet.engine()
            parquet.count_rows(self._engine, table, str(path))
        except FileNotFoundError:
            return MISSING
        except UnfitFile as error:
            return f"is {error}"
        except OSError as error:
            if error.errno == errno.EIO:
                return str(error.strerror)
            raise WarehouseFailure(f"{path}: cannot be read: {error.strerror or error}") from error
        except duckdb.OutOfMemoryException as error:
            raise WarehouseFailure(f"{path}: cannot be read: not enough memory") from error
        except (duckdb.Error, ValueError) as error:
            self._engine = None  # a connection is unusable after an internal error
            return f"cannot be read: {str(error).splitlines()[0]}"
        return None


def _truncation(path: Path) -> str | None:
    try:
        if read_range(path, -len(PARQUET_END), len(PARQUET_END)) == PARQUET_END:
            return None
        size = path.stat().st_size
    except FileNotFoundError:
        return MISSING
    except UnfitFile as error:
        return f"is {error}"
    except OSError as error:
        raise WarehouseFailure(f"{path}: cannot be read: {error.strerror or error}") from error
    return f"is truncated: its {size:,} bytes do not end with the Parquet footer"


def _named(folder: Path, tables: Sequence[Table]) -> list[tuple[Table, Path]]:
    files = manifest.read(folder) or manifest.empty()
    table_names = {table.name for table in tables}
    return [
        (BY_NAME[name], folder / name / file_name)
        for name, names in files.items()
        if name in table_names
        for file_name in names
    ]


@dataclass(frozen=True, slots=True)
class Repairs:
    """Repairs of files, one line each; `aside` are the new paths of files that were set aside."""

    reader: FileTester
    lines: list[str] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)


def repair(folder: Path) -> list[str]:
    """Repair the files, with the warehouse's lock; return a line for each repair. Raises `WarehouseFailure`."""
    repairs = Repairs(FileTester())
    manifest_files = _manifest(folder, repairs)
    files, restored_paths = manifest.empty(), []
    for table in TABLES:
        file_names = files[table.name]
        if manifest_files is not None:
            file_names += _readable(folder, table, manifest_files[table.name], repairs)
        else:
            for name in _readable(folder, table, manifest.parquet_files(folder, table.name), repairs):
                _add_rows(folder, table, file_names, folder / table.name / name)
        restored_paths += _restore(folder, table, file_names, repairs)
    if files != manifest_files:
        manifest.write(folder, files)
    for path in restored_paths:
        path.unlink()
    return [*repairs.lines, *([WITHOUT_RECORD] if repairs.aside else [])]


def _manifest(folder: Path, repairs: Repairs) -> Files | None:
    """Return the files that the manifest names; None if it must be rebuilt."""
    try:
        return manifest.read(folder) or manifest.empty()
    except ManifestDamaged as error:
        path = folder / manifest.NAME
        repairs.lines.append(f"{str(error).rpartition(';')[0]}; rebuilt from the Parquet files")
        if path.exists() or path.is_symlink():
            set_aside(folder, path, "")
        return None


def _readable(folder: Path, table: Table, names: Sequence[str], repairs: Repairs) -> list[str]:
    """Return the readable files without duplicates; set the others aside."""
    readable = []
    for name in dict.fromkeys(names):
        path = folder / table.name / name
        reason = repairs.reader.unreadable(table, path)
        if reason is None:
            readable.append(name)
        elif reason == MISSING:
            repairs.lines.append(f"{path}: is missing; removed from the manifest")
        else:
            repairs.aside.append(set_aside(folder, path, table.name))
            repairs.lines.append(f"{path}: {reason}; set aside as {repairs.aside[-1]}")
    return readable


def set_aside(folder: Path, path: Path, subfolder: str) -> Path:
    """Move a file to the folder `damaged`, under an unused name; return its new path."""
    target = folder / DAMAGED / subfolder / path.name
    number = 0
    while target.exists():
        number += 1
        target = target.with_name(f"{path.stem}-{number}{path.suffix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
    sync(target.parent)
    return target


def _restore(folder: Path, table: Table, file_names: list[str], repairs: Repairs) -> list[Path]:
    """Add the rows of files that were set aside and can be read now; return these files."""
    restored_paths = []
    for name in manifest.parquet_files(folder / DAMAGED, table.name):
        path = folder / DAMAGED / table.name / name
        if repairs.reader.unreadable(table, path) is None:
            count = _add_rows(folder, table, file_names, path)
            repairs.lines.append(f"{path}: can be read again; {count:,} of its rows were missing and are restored")
            restored_paths.append(path)
    return restored_paths


def _add_rows(folder: Path, table: Table, file_names: list[str], path: Path) -> int:
    """Add the rows of a file whose keys are missing in the table; return how many."""
    engine, table_folder = parquet.engine(), folder / table.name
    parquet.load_parquet(engine, table, str(path))
    parquet.drop_existing(engine, table, [str(table_folder / name) for name in file_names])
    count = parquet.incoming_rows(engine)
    if path.parent == table_folder and count == parquet.count_rows(engine, table, str(path)):
        file_names.append(path.name)
    elif count:
        target = table_folder / f"{secrets.token_hex(16)}.parquet"
        table_folder.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            parquet.write_new(engine, table, [], str(temporary))
        file_names.append(target.name)
    return count
