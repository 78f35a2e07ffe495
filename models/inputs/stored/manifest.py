"""The manifest of a data set that this project wrote: what it contains, what it was made of, and how.

It is `manifest.json` in the data set's folder. A folder with an unfinished manifest belongs to a command that was
interrupted: it is continued only with the same settings, and no reader accepts it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from keras_matrix.models.inputs.stored.sample import InputDataError

NAME = "manifest.json"
WRITER = "keras-matrix 1"


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One record file: its name, records and bytes."""

    name: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A data set: `settings` are what the command was asked for, and must be equal to continue it."""

    kind: str
    settings: dict[str, Any]
    classes: tuple[str, ...]
    count: int
    finished: bool
    parts: tuple[RecordFile, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, None without one of ours. Raises `InputDataError` if it is invalid."""
    path = folder / NAME
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputDataError(f"{path}: cannot be read: {error}") from None
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("written_by", None) != WRITER:
            return None
        parts = tuple(RecordFile(**part) for part in data.pop("parts"))
        return Manifest(parts=parts, classes=tuple(data.pop("classes")), **data)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputDataError(
            f"{path}: is not a manifest of a data set ({error}); delete it, or make it again"
        ) from None


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder; a crash leaves the old one or the new one."""
    path = folder / NAME
    text = json.dumps({"written_by": WRITER, **asdict(manifest)}, indent=1, allow_nan=False) + "\n"
    partial = path.with_name(f".{NAME}.part")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def finished(folder: Path) -> Manifest | None:
    """Return the manifest for a reader, None without one. Raises `InputDataError` for an unfinished data set."""
    manifest = read(folder)
    if manifest is not None and not manifest.finished:
        raise InputDataError(f"{folder}: is unfinished: repeat the command that was writing it, which continues it")
    return manifest
