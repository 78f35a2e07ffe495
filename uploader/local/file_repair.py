"""Repairs the files of the local warehouse: sets damaged ones aside, and rebuilds a missing or damaged manifest.

    warehouse/damaged/<table>/<name>.parquet     a damaged file, unchanged; nothing is deleted

A damaged file is removed from the manifest, and `uploader.repair` then sends the missing rows. A manifest is rebuilt
from the Parquet files in the tables' folders with one row per key: a killed merge or compaction may have left rows in
two files. If a file in `damaged` can be read again, such as a copy from a backup, its rows with missing keys are added.

If a repair is killed at any point, the next one completes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.files import replacing, sync
from keras_matrix.uploader.errors import ManifestDamaged
from keras_matrix.uploader.local import manifest, parquet
from keras_matrix.uploader.local.damaged_files import MISSING, FileTester
from keras_matrix.uploader.local.manifest import Files
from keras_matrix.uploader.schema import TABLES, Table

DAMAGED = "damaged"
WITHOUT_RECORD = (
    "rows of files that were set aside are restored from the records; to restore rows without a record, such as "
    "imported ones, replace the file that was set aside by an intact copy and run the same command again"
)


@dataclass(frozen=True, slots=True)
class Repairs:
    """Repairs of files, one line each; `aside` are the new paths of files that were set aside."""

    reader: FileTester
    lines: list[str] = field(default_factory=list)
    aside: list[Path] = field(default_factory=list)


def repair(folder: Path) -> list[str]:
    """Repair the files, with the warehouse's lock; return a line for each repair. Raises `WarehouseFailure`."""
    done = Repairs(FileTester())
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
    """Return the files that the manifest names; None if it must be rebuilt."""
    try:
        return manifest.read(folder) or manifest.empty()
    except ManifestDamaged as error:
        path = folder / manifest.NAME
        done.lines.append(f"{str(error).rpartition(';')[0]}; rebuilt from the Parquet files")
        if path.exists() or path.is_symlink():
            set_aside(folder, path, "")
        return None


def _readable(folder: Path, table: Table, names: Sequence[str], done: Repairs) -> list[str]:
    """Return the readable files without duplicates; set the others aside."""
    readable = []
    for name in dict.fromkeys(names):
        path = folder / table.name / name
        reason = done.reader.unreadable(table, path)
        if reason is None:
            readable.append(name)
        elif reason == MISSING:
            done.lines.append(f"{path}: is missing; removed from the manifest")
        else:
            done.aside.append(set_aside(folder, path, table.name))
            done.lines.append(f"{path}: {reason}; set aside as {done.aside[-1]}")
    return readable


def set_aside(folder: Path, path: Path, below: str) -> Path:
    """Move a file to the folder `damaged`, under an unused name; return its new path."""
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
    """Add the rows of files that were set aside and can be read now; return these files."""
    restored = []
    for name in manifest.parquet_files(folder / DAMAGED, table.name):
        path = folder / DAMAGED / table.name / name
        if done.reader.unreadable(table, path) is None:
            count = _add_rows(folder, table, named, path)
            done.lines.append(f"{path}: can be read again; {count:,} of its rows were missing and are restored")
            restored.append(path)
    return restored


def _add_rows(folder: Path, table: Table, named: list[str], path: Path) -> int:
    """Add the rows of a file whose keys are missing in the table; return how many."""
    engine, here = parquet.engine(), folder / table.name
    parquet.load_parquet(engine, table, str(path))
    parquet.drop_existing(engine, table, [str(here / name) for name in named])
    count = parquet.incoming_rows(engine)
    if path.parent == here and count == parquet.count_rows(engine, table, str(path)):
        named.append(path.name)
    elif count:
        target = here / f"{secrets.token_hex(16)}.parquet"
        here.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            parquet.write_new(engine, table, [], str(temporary))
        named.append(target.name)
    return count
