"""Which Parquet files of the local warehouse cannot be read, and why.

Every value of a file is read. Not found: a value that was changed into another one (see `uploader verify --values`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uploader import manifest, parquet
from uploader.errors import FileDamaged, WarehouseFailure
from uploader.schema import BY_NAME, TABLES, Table

if TYPE_CHECKING:
    import duckdb

MISSING = "is missing"
MOST_LISTED = 5
PARQUET_END = b"PAR1"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that the manifest names and nobody can read."""

    table: Table
    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def damages(folder: Path, tables: Sequence[Table] = TABLES) -> list[Damage]:
    """Return the damaged files of these tables. Raises `WarehouseFailure`."""
    reader, named = Reader(), _named(folder, tables)
    found = [Damage(table, path, why) for table, path in named if (why := reader.unreadable(table, path)) is not None]
    return [
        one for one in found if (one.table, one.path) in _named(folder, tables)
    ]  # a compaction may have come between


def incomplete(folder: Path) -> list[Damage]:
    """Return the files that are missing or do not end as Parquet files do; reads the last bytes of each.

    Raises `WarehouseFailure`.
    """
    found = [(table, path, _incompleteness(path)) for table, path in _named(folder, TABLES)]
    return [Damage(table, path, reason) for table, path, reason in found if reason is not None]


def refusal(found: Sequence[Damage]) -> FileDamaged:
    """Return the error that names damaged files and what to do."""
    listed = "\n  ".join(map(str, found[:MOST_LISTED]))
    more = f"\n  and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return FileDamaged(
        f"the warehouse has {len(found)} damaged file{'s' if len(found) > 1 else ''}:\n  {listed}{more}\n"
        "no query is answered and new rows of its table stay pending: set the file aside and send its rows "
        "again from the records with: uploader push --repair, and the same --to and --results"
    )


class Reader:
    """Reads files to find out whether they can be read."""

    def __init__(self) -> None:
        self._engine: duckdb.DuckDBPyConnection | None = None

    def unreadable(self, table: Table, path: Path) -> str | None:
        """Return why a file cannot be read as one of a table's, None if it can.

        Raises `WarehouseFailure` if the reason says nothing about the file, such as missing rights or memory.
        """
        import duckdb

        try:
            with path.open("rb"):
                pass
            self._engine = self._engine or parquet.engine()
            parquet.rows(self._engine, table, str(path))
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.EIO):
                return str(error.strerror)
            raise WarehouseFailure(f"{path}: cannot be read: {error.strerror or error}") from error
        except duckdb.OutOfMemoryException as error:
            raise WarehouseFailure(f"{path}: cannot be read: not enough memory") from error
        except (duckdb.Error, ValueError) as error:
            self._engine = None  # an internal error ends an engine
            return f"cannot be read: {str(error).splitlines()[0]}"
        return None


def _incompleteness(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - len(PARQUET_END), 0))
            if file.read() == PARQUET_END:
                return None
    except FileNotFoundError:
        return MISSING
    except IsADirectoryError:
        return "is a folder"
    except OSError as error:
        raise WarehouseFailure(f"{path}: cannot be read: {error.strerror or error}") from error
    return f"is cut off: its {size:,} bytes do not end as a Parquet file does"


def _named(folder: Path, tables: Sequence[Table]) -> list[tuple[Table, Path]]:
    files = manifest.read(folder) or manifest.empty()
    wanted = {table.name for table in tables}
    return [(BY_NAME[name], folder / name / one) for name, names in files.items() if name in wanted for one in names]
