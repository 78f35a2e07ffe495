"""Repairs the files of the local warehouse: sets damaged ones aside, and rebuilds a missing or damaged manifest.

    warehouse/damaged/<table>/<name>.parquet     set aside as it was; nothing is deleted

A damaged file leaves the manifest: the warehouse is what its readable files contain, and `uploader.repair` then sends
the rows that are missing. A manifest is rebuilt from the Parquet files in the tables' folders, each row once by its
key: a killed merge or compaction may have left rows in two of them. A file under `damaged` that can be read again, such
as a good copy from a backup, is added: each of its rows whose key is missing.

Promise: killed at any point, the next repair finishes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from records.files import replacing, sync
from uploader import manifest, parquet
from uploader.damage import MISSING, Reader
from uploader.errors import ManifestDamaged
from uploader.manifest import Files
from uploader.schema import TABLES, Table

DAMAGED = "damaged"
WITHOUT_RECORD = (
    "rows of what is set aside come back from the records; rows without one, such as imported ones, once a good copy "
    "takes the place of the file that is set aside and the same command is run again"
)


@dataclass(frozen=True, slots=True)
class Repairs:
    """What was done to the files, one line each; `aside` are files that were set aside, at their new paths."""

    reader: Reader
    lines: list[str] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)


def repair(folder: Path) -> list[str]:
    """Repair the files, under the warehouse's lock; return what was done, one line each. Raises `WarehouseFailure`."""
    done = Repairs(Reader())
    found = _manifest(folder, done)
    files, restored = manifest.empty(), []
    for table in TABLES:
        named = files[table.name]
        if found is not None:
            named += _readable(folder, table, found[table.name], done)
        else:
            for name in _readable(folder, table, manifest.parquet_files(folder, table.name), done):
                _add_rows(folder, table, named, folder / table.name / name)
        restored += _restore(folder, table, named, done)
    if files != found:
        manifest.write(folder, files)
    for path in restored:
        path.unlink()
    return [*done.lines, *([WITHOUT_RECORD] if done.aside else [])]


def _manifest(folder: Path, done: Repairs) -> Files | None:
    """Return the files that the manifest names; None if it has to be rebuilt."""
    try:
        return manifest.read(folder) or manifest.empty()
    except ManifestDamaged as error:
        path = folder / manifest.NAME
        done.lines.append(f"{str(error).rpartition(';')[0]}; it is rebuilt from the Parquet files")
        if path.exists() or path.is_symlink():
            set_aside(folder, path, "")
        return None


def _readable(folder: Path, table: Table, names: Sequence[str], done: Repairs) -> list[str]:
    """Return the files that can be read, each once; the others are set aside."""
    readable = []
    for name in dict.fromkeys(names):
        path = folder / table.name / name
        reason = done.reader.unreadable(table, path)
        if reason is None:
            readable.append(name)
        elif reason == MISSING:
            done.lines.append(f"{path}: is missing; it leaves the manifest")
        else:
            done.aside.append(set_aside(folder, path, table.name))
            done.lines.append(f"{path}: {reason}; it is set aside as {done.aside[-1]}")
    return readable


def set_aside(folder: Path, path: Path, below: str) -> Path:
    """Move a file to the folder of damaged ones, under a name that is free there; return its new path."""
    target = folder / DAMAGED / below / path.name
    number = 0
    while target.exists():
        number += 1
        target = target.with_name(f"{path.stem}-{number}{path.suffix}")
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
    sync(target.parent)
    return target


def _restore(folder: Path, table: Table, named: list[str], done: Repairs) -> list[Path]:
    """Take in the files that were set aside and can be read now; return them."""
    restored = []
    for name in manifest.parquet_files(folder / DAMAGED, table.name):
        path = folder / DAMAGED / table.name / name
        if done.reader.unreadable(table, path) is None:
            count = _add_rows(folder, table, named, path)
            done.lines.append(f"{path}: can be read again; {count:,} of its rows were missing and are back")
            restored.append(path)
    return restored


def _add_rows(folder: Path, table: Table, named: list[str], path: Path) -> int:
    """Add those rows of a file to a table whose keys it does not have; return how many."""
    engine, here = parquet.engine(), folder / table.name
    parquet.take_file(engine, table, str(path))
    parquet.drop_known(engine, table, [str(here / name) for name in named])
    count = parquet.taken(engine)
    if path.parent == here and count == parquet.rows(engine, table, str(path)):
        named.append(path.name)
    elif count:
        target = here / f"{secrets.token_hex(16)}.parquet"
        here.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            parquet.write_new(engine, table, [], str(temporary))
        named.append(target.name)
    return count
