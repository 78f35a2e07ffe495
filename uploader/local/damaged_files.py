"""Finds unreadable Parquet files of the local warehouse.

Every value of a file is read. A value that was replaced by another valid one is detected only by `uploader verify
--values`.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_matrix.records.files import NOT_REGULAR, UnfitFile, read_range
from keras_matrix.uploader.errors import FileDamaged, WarehouseFailure
from keras_matrix.uploader.local import manifest, parquet
from keras_matrix.uploader.schema import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    import duckdb

MISSING = "is missing"
MOST_LISTED = 5
PARQUET_END = b"PAR1"


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
    reader, named = FileTester(), _named(folder, tables)
    found = [
        DamagedFile(table, path, why) for table, path in named if (why := reader.unreadable(table, path)) is not None
    ]
    return [
        one for one in found if (one.table, one.path) in _named(folder, tables)
    ]  # a compaction may have come between


def find_truncated(folder: Path) -> list[DamagedFile]:
    """Return the files that are missing or truncated; reads the last bytes of each. Raises `WarehouseFailure`."""
    found = [(table, path, _truncation(path)) for table, path in _named(folder, TABLES)]
    return [DamagedFile(table, path, reason) for table, path, reason in found if reason is not None]


def find_unfit(folder: Path, files: Mapping[str, Sequence[str]]) -> list[DamagedFile]:
    """Return what is in the place of a file and is none, such as a link or a pipe, which a query would wait for."""
    found = []
    for table in TABLES:
        for name in files[table.name]:
            path = folder / table.name / name
            with suppress(OSError):  # such as of a missing file, which is reported when it is read
                if not stat.S_ISREG(path.lstat().st_mode):
                    found.append(DamagedFile(table, path, f"is {NOT_REGULAR}"))
    return found


def damaged_error(found: Sequence[DamagedFile]) -> FileDamaged:
    """Return the error for damaged files."""
    listed = "\n  ".join(map(str, found[:MOST_LISTED]))
    more = f"\n  and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return FileDamaged(
        f"the warehouse has {len(found)} damaged file{'s' if len(found) > 1 else ''}:\n  {listed}{more}\n"
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
    wanted = {table.name for table in tables}
    return [(BY_NAME[name], folder / name / one) for name, names in files.items() if name in wanted for one in names]
