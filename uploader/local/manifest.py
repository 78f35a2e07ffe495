"""The manifest of the local warehouse: the current Parquet files of each table.

    manifest.json      {"version": 1, "tables": {TABLE: [FILE, ...]}}; replaced atomically, so that a merge is atomic

A manifest that names anything but files in the tables' own folders counts as damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from keras_matrix.records.codec import CodecError
from keras_matrix.records.files import LINK, read_json
from keras_matrix.records.store import put
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.uploader.errors import ManifestDamaged, WarehouseFailure
from keras_matrix.uploader.schema import TABLES

NAME = "manifest.json"
VERSION = 1
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.parquet")
REPAIR = "rebuild it from the Parquet files with: uploader push --repair, with the same --to and --results"

Files = dict[str, list[str]]


def empty() -> Files:
    """Return the files of a warehouse without rows."""
    return {table.name: [] for table in TABLES}


def read(folder: Path) -> Files | None:
    """Return the files of each table; None if the folder has neither a manifest nor a Parquet file.

    Raises `ManifestDamaged`, or `WarehouseFailure` if its version is newer or this user may not read it.
    """
    path = folder / NAME
    for table in TABLES:
        if (folder / table.name).is_symlink():
            raise WarehouseFailure(f"{folder / table.name}: is {LINK}; replace it by the folder")
    try:
        contents = read_json(path)
    except FileNotFoundError:
        if count := sum(len(parquet_files(folder, table.name)) for table in TABLES):
            raise ManifestDamaged(f"{path}: is missing, but the folder has {count} Parquet files; {REPAIR}") from None
        return None
    except PermissionError as error:
        raise WarehouseFailure(f"{path}: cannot be read: {error.strerror}; grant this user read access") from error
    except OSError as error:
        raise ManifestDamaged(f"{path}: cannot be read: {error.strerror or error}; {REPAIR}") from error
    except CodecError as error:
        raise ManifestDamaged(f"{path}: is damaged: {error}; {REPAIR}") from error
    try:
        return _checked(path, contents)
    except CodecError as error:
        raise ManifestDamaged(f"{path}: is damaged: {error}; {REPAIR}") from error


def write(folder: Path, files: Mapping[str, list[str]]) -> None:
    """Replace the manifest. Raises `WarehouseFailure`."""
    try:
        put(folder / NAME, json.dumps({"version": VERSION, "tables": files}, indent=1) + "\n")
    except StoreFailure as error:
        raise WarehouseFailure(str(error)) from error


def sweep(folder: Path) -> None:
    """Remove temporary manifests of killed processes. The caller must have the warehouse's lock."""
    for temporary in folder.glob(f".{NAME}.*.tmp"):
        temporary.unlink(missing_ok=True)


def parquet_files(folder: Path, table: str) -> list[str]:
    """Return the names of the Parquet files in a table's folder, sorted."""
    return sorted(path.name for path in (folder / table).glob("*.parquet") if FILE_NAME.fullmatch(path.name))


def _checked(path: Path, contents: object) -> Files:
    """Return the files that a manifest names. Raises `CodecError` if it is invalid."""
    version = contents.get("version") if isinstance(contents, dict) else None
    if not isinstance(contents, dict) or type(version) is not int:
        raise CodecError("it has no version")
    if version > VERSION:
        raise WarehouseFailure(f"{path}: version {version} is newer than {VERSION}; update this program")
    tables = contents.get("tables")
    if not isinstance(tables, dict):
        raise CodecError(f"tables: must be an object, got {type(tables).__name__}")
    return {table.name: _names(table.name, tables.get(table.name, [])) for table in TABLES}


def _names(table: str, names: object) -> list[str]:
    if not isinstance(names, list):
        raise CodecError(f"tables.{table}: must be a list, got {type(names).__name__}")
    for name in names:
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            raise CodecError(f"tables.{table}: must be plain names of Parquet files, got {name!r}")
    return list(names)
