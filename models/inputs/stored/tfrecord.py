"""TFRecord files with random access: an index of the records' offsets, and one `pread` for successive records.

The converter writes the index beside each file; for other files the lengths are read once when the source is opened.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from keras_matrix.models.inputs.stored import record_file, shards
from keras_matrix.models.inputs.stored.example import Features, WrongExample, decoded, label_and_text
from keras_matrix.models.inputs.stored.manifest import Manifest
from keras_matrix.models.inputs.stored.order import Order
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Sample


@dataclass(frozen=True)
class TFRecordSource:
    """The samples of TFRecord files. `firsts` numbers the samples by file; `starts` are all files' offsets in turn."""

    paths: tuple[Path, ...]
    firsts: Integers
    starts: Integers
    count: int
    features: Features
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    kind: str = shards.TFRECORD

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return these samples, with their checksums verified."""
        found: list[Sample] = []
        for file, record, count in shards.runs(indices, self.firsts):
            path = self.paths[file]
            offset = int(self.firsts[file]) + file + record
            start, end = int(self.starts[offset]), int(self.starts[offset + count])
            for number, payload in enumerate(record_file.split(_bytes(path, start, end), start, path)):
                try:
                    found.append(decoded(payload, self.features))
                except WrongExample as error:
                    shards.refuse(f"{path}: record {record + number}", error)
        return found

    def name(self, index: int) -> str:
        """Return the file and the record's number in it."""
        file = int(np.searchsorted(self.firsts, index, side="right")) - 1
        return f"{self.paths[file].name} record {index - int(self.firsts[file])}"

    def files(self) -> list[Path]:
        """Return the files of these samples."""
        return [path for path, first in zip(self.paths, self.firsts, strict=False) if first < self.count]

    def sizes(self) -> Integers:
        """Return the bytes of each record, frame included."""
        ends = np.cumsum(np.diff(self.firsts) + 1) - 1
        return np.delete(np.diff(self.starts), ends[:-1])[: self.count]

    def order(self, shuffle: str, seed: int, batch_size: int) -> Order:
        """Return the order of reading."""
        return Order(self.count, batch_size, shuffle, seed)


def open_tfrecord(
    paths: Sequence[Path], limit: int | None, features: Features, known: Manifest | None
) -> TFRecordSource:
    """Return the source of TFRecord files. Raises `InputDataError` if one is damaged or has other features."""
    record_file.require_crc32c()
    stored = [record_file.stored_offsets(path) for path in paths]
    starts = [record_file.offsets(path) if one is None else one for path, one in zip(paths, stored, strict=True)]
    firsts = np.concatenate([[0], np.cumsum([len(one) - 1 for one in starts])]).astype(np.int64)
    count = shards.check_limit(paths[0].parent, int(firsts[-1]), limit)
    if known is None:
        labels: dict[int, str] = {}
        for path, one in zip(paths, starts, strict=True):
            _collect_labels(path, one, features, labels)
        classes = shards.class_names(labels)
    else:
        classes = known.classes
        decoded_first = _bytes(paths[0], 0, int(starts[0][1]))
        try:
            decoded(next(record_file.split(decoded_first, 0, paths[0])), features)
        except WrongExample as error:
            shards.refuse(f"{paths[0]}: record 0", error)
    notes = tuple(
        f"{path.name}{record_file.INDEX_SUFFIX} does not belong to its file and is not used"
        for path, one in zip(paths, stored, strict=True)
        if one is None and path.with_name(path.name + record_file.INDEX_SUFFIX).exists()
    )
    return TFRecordSource(tuple(paths), firsts, np.concatenate(starts), count, features, classes, notes)


def _collect_labels(path: Path, starts: Integers, features: Features, labels: dict[int, str]) -> None:
    """Add the labels in a file and the names of their classes. Pages with nothing but image bytes are not read."""
    with path.open("rb") as file:
        # Not closed here: the traceback of an error refers to parts of it.
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    view = memoryview(mapped)
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        payload = view[start + record_file.HEADER.size : end - record_file.FOOTER.size]
        try:
            label, text = label_and_text(payload, features)
        except WrongExample as error:
            shards.refuse(f"{path}: record {number}", error)
        if not labels.get(label):
            labels[label] = text


def _bytes(path: Path, start: int, end: int) -> bytes:
    """Return a part of a file: open, pread, close. Raises `InputDataError`."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(handle, end - start, start)
            while start + len(data) < end and (more := os.pread(handle, end - start - len(data), start + len(data))):
                data += more
            return data
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise InputDataError(
            f"{path}: offset {start}: the file has vanished since it was opened; restore it, or start again"
        ) from None
    except OSError as error:
        raise InputDataError(f"{path}: offset {start}: cannot be read: {error.strerror}") from None
