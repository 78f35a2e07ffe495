"""The folder of a TFRecord or ArrayRecord data set: its files, their numbering, its classes, and its manifest.

It is `manifest.json` in the data set's folder. A folder with an unfinished manifest belongs to a command that was
interrupted: it is continued only with the same settings, and no reader accepts it.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from keras_matrix.models.inputs.stored.record_file import Features, WrongExample, decoded
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Order, Sample

TFRECORD, ARRAY_RECORD = "tfrecord", "array_record"
# `train-00000-of-01024` without a suffix is what TensorFlow's converter of ImageNet writes.
PATTERNS = {
    TFRECORD: re.compile(r"(\.tfrecords?(-\d+-of-\d+)?|^[\w-]*-\d{5}-of-\d{5})$"),
    ARRAY_RECORD: re.compile(r"\.array_?record(-\d+-of-\d+)?$"),
}
NAME = "manifest.json"
WRITER = "keras-matrix 1"


@dataclass(frozen=True, kw_only=True)
class RecordSource(ABC):
    """The samples of record files: what does not depend on their format. `firsts` numbers the samples by file."""

    paths: tuple[Path, ...]
    firsts: Integers
    count: int
    features: Features
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.count

    @abstractmethod
    def payloads(self, file: int, record: int, count: int) -> Iterable[bytes]:
        """Return `count` successive records of a file, their checksums verified. Raises `InputDataError`."""

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return these samples, with their checksums verified. Raises `InputDataError`."""
        samples: list[Sample] = []
        for file, record, count in runs(indices, self.firsts):
            for number, payload in enumerate(self.payloads(file, record, count)):
                try:
                    samples.append(decoded(payload, self.features))
                except WrongExample as error:
                    refuse(f"{self.paths[file]}: record {record + number}", error)
        return samples

    def name(self, index: int) -> str:
        """Return the file and the record's number in it."""
        file = int(np.searchsorted(self.firsts, index, side="right")) - 1
        return f"{self.paths[file].name} record {index - int(self.firsts[file])}"

    def files(self) -> list[Path]:
        """Return the files of these samples."""
        return [path for path, first in zip(self.paths, self.firsts, strict=False) if first < self.count]

    def order(self, shuffle: str, seed: int, batch_size: int) -> Order:
        """Return the order of reading."""
        return Order(self.count, batch_size, shuffle, seed)


def kind_of(name: str) -> str | None:
    """Return the format that a file's name states, or None. Hidden files, such as unfinished ones, have none."""
    if name.startswith("."):
        return None
    return next((kind for kind, pattern in PATTERNS.items() if pattern.search(name)), None)


def record_files(path: Path) -> tuple[str, list[Path]] | None:
    """Return the format and the record files of a folder, or of a single file; None without record files."""
    if path.is_file():
        kind = kind_of(path.name)
        if kind is None:
            raise InputDataError(f"{path}: must be a folder, or a file named *.tfrecord or *.array_record")
        return kind, [path]
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise InputDataError(f"{path}: cannot be read: {error.strerror}") from None
    kinds = {name: kind for name in names if (kind := kind_of(name)) and (path / name).is_file()}
    if len(set(kinds.values())) > 1:
        raise InputDataError(f"{path}: has both TFRecord and ArrayRecord files; give a folder with one of them")
    return (next(iter(kinds.values())), [path / name for name in kinds]) if kinds else None


def checked_manifest(files: Sequence[Path], is_single: bool) -> Manifest | None:
    """Return the manifest of the files of a folder, or of a single file in it; None without one.

    Raises `InputDataError` if a file that it lists is missing or has changed.
    """
    stored_manifest = finished(files[0].parent)
    present_names = {path.name for path in files}
    if stored_manifest is None or (
        is_single and not present_names & {record_file.name for record_file in stored_manifest.parts}
    ):
        return None
    for record_file in stored_manifest.parts:
        path = files[0].parent / record_file.name
        if record_file.name not in present_names:
            if is_single:
                continue
            raise InputDataError(f"{path}: is missing, but {NAME} lists it; restore it, or convert again")
        if path.stat().st_size != record_file.bytes:
            raise InputDataError(
                f"{path}: has {path.stat().st_size} bytes, but {NAME} says {record_file.bytes}; "
                f"it is truncated or was replaced: restore it, or convert again"
            )
    return stored_manifest


def check_limit(path: Path, count: int, limit: int | None) -> int:
    """Return how many samples to use. Raises `InputDataError` if there are fewer than the limit."""
    if limit is not None and limit > count:
        raise InputDataError(
            f"{path}: {limit} samples are asked for, but its files have {count} records; "
            f"set dataset_size to at most {count}, or convert more images"
        )
    return count if limit is None else limit


def class_names(labels: dict[int, str]) -> tuple[str, ...]:
    """Return the names of the classes from 0 to the greatest label: the texts in the records, otherwise the numbers."""
    return tuple(labels.get(number) or str(number) for number in range(max(labels) + 1))


def runs(indices: Sequence[int], firsts: Integers) -> Iterator[tuple[int, int, int]]:
    """Yield (file, first record, records) for each run of successive indices within a file.

    `firsts` has the number of the first sample of each file, and behind them the number of samples.
    """
    positions = np.asarray(indices, np.int64)
    if not len(positions):
        return
    if positions.min() < 0 or positions.max() >= firsts[-1]:
        raise IndexError(f"samples have the indices 0 to {firsts[-1] - 1}, got {positions.min()} to {positions.max()}")
    file = np.searchsorted(firsts, positions, side="right") - 1
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(file) != 0)) + 1
    for start, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(positions)], strict=True):
        yield int(file[start]), int(positions[start] - firsts[file[start]]), end - start


def refuse(place: str, error: Exception) -> NoReturn:
    """Raise the error of a record with its place."""
    raise InputDataError(f"{place}: {error}") from None


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
        fields = json.loads(text)
        if not isinstance(fields, dict) or fields.pop("written_by", None) != WRITER:
            return None
        read_files = tuple(RecordFile(**file_fields) for file_fields in fields.pop("parts"))
        return Manifest(parts=read_files, classes=tuple(fields.pop("classes")), **fields)
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
