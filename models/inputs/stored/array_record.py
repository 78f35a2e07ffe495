"""ArrayRecord files, read with the package array_record; each record is a `tf.train.Example`, as in TFRecord files.

Files that the converter writes have one record per chunk (`group_size:1`), so that a random read decodes one record.
A file with larger groups works, but each random read decodes a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.stored import shards
from keras_matrix.models.inputs.stored.example import Features, WrongExample, label_and_text
from keras_matrix.models.inputs.stored.manifest import Manifest
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers

# JPEG data cannot be compressed further; without compression reading takes 15 % less CPU time.
WRITER_OPTIONS = "group_size:1,uncompressed"
# Without threads and readahead of its own: the pipeline's workers read, and one record is one read.
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
MOST_OPEN_FILES = 256
LABEL_RUN = 64


@dataclass(frozen=True, kw_only=True)
class ArrayRecordSource(shards.RecordSource):
    """The samples of ArrayRecord files; the library verifies its checksums."""

    identities: tuple[tuple[int, int], ...]
    kind: str = shards.ARRAY_RECORD

    def payloads(self, file: int, record: int, count: int) -> list[bytes]:
        """Return successive records of a file."""
        return payloads(self.paths[file], self.identities[file], record, count)

    def sizes(self) -> Integers:
        """Return the mean bytes of a record of its file, for each sample."""
        counts = np.diff(self.firsts)
        means = np.array([size for _, size in self.identities], np.int64) // np.maximum(counts, 1)
        return np.repeat(means, counts)[: self.count]


def open_array_record(
    paths: Sequence[Path], limit: int | None, features: Features, known: Manifest | None
) -> ArrayRecordSource:
    """Return the source of ArrayRecord files. Raises `InputDataError` if one is damaged or has other features."""
    identities = tuple(identity(path) for path in paths)
    counts = [_reader(path, one).num_records() for path, one in zip(paths, identities, strict=True)]
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    count = shards.check_limit(paths[0].parent, int(firsts[-1]), limit)
    labels: dict[int, str] = {}
    for path, one, total in zip(paths, identities, counts, strict=True):
        # With a manifest, the first record is enough to check the names of the features.
        _collect_labels((path, one), total if known is None else 1, features, labels)
    classes = shards.class_names(labels) if known is None else known.classes
    return ArrayRecordSource(
        paths=tuple(paths), identities=identities, firsts=firsts, count=count, features=features, classes=classes
    )


def identity(path: Path) -> tuple[int, int]:
    """Return the time of the last change and the size of a file, which must stay for an open reader to be used."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputDataError(f"{path}: cannot be read: {error.strerror}") from None
    if status.st_size == 0:
        raise InputDataError(f"{path}: offset 0: the file is empty (0 bytes); delete it, or write it again")
    return status.st_mtime_ns, status.st_size


def payloads(path: Path, identity: tuple[int, int], first: int, count: int) -> list[bytes]:
    """Return successive records of a file. Raises `InputDataError` if they cannot be read."""
    try:
        return list(_reader(path, identity).read(first, first + count))
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputDataError(f"{path}: records {first} to {first + count - 1}: cannot be read: {reason}") from None


def close_files() -> None:
    """Close the readers that this process has open, with their buffers."""
    _reader.cache_clear()


def record_count(path: Path) -> int:
    """Return the number of records of a file. Raises `InputDataError` if it is damaged."""
    return int(_reader(path, identity(path)).num_records())


@lru_cache(MOST_OPEN_FILES)
def _reader(path: Path, identity: tuple[int, int]) -> Any:
    """Return an open reader; `identity` makes it a new one if the file was replaced."""
    reader = module().ArrayRecordReader(str(path), READER_OPTIONS)
    if not path.exists():
        raise InputDataError(f"{path}: the file has vanished since it was opened; restore it, or start again")
    if not reader.ok() or reader.num_records() == 0:
        raise InputDataError(
            f"{path}: offset {identity[1]}: has no index at its end; it is truncated, empty or not an ArrayRecord "
            f"file: write or copy it again"
        )
    return reader


def module() -> Any:
    """Return the module of readers and writers. Raises `InputDataError` without the package."""
    try:
        from array_record.python import array_record_module
    except ImportError:
        raise InputDataError(
            "ArrayRecord files need the package array-record: pip install 'keras-matrix[inputs]'"
        ) from None
    return array_record_module


def _collect_labels(file: tuple[Path, tuple[int, int]], count: int, features: Features, labels: dict[int, str]) -> None:
    for first in range(0, count, LABEL_RUN):
        for number, payload in enumerate(payloads(*file, first, min(LABEL_RUN, count - first)), start=first):
            try:
                label, text = label_and_text(payload, features)
            except WrongExample as error:
                shards.refuse(f"{file[0]}: record {number}", error)
            if not labels.get(label):
                labels[label] = text
