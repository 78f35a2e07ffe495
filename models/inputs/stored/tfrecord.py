"""TFRecord files with random access: an index of the records' offsets, and one `pread` for successive records.

The converter writes the index beside each file; for other files the lengths are read once when the source is opened.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from keras_matrix.models.inputs.stored import record_file, shards
from keras_matrix.models.inputs.stored.example import Features, WrongExample, decoded, label_and_text
from keras_matrix.models.inputs.stored.manifest import Manifest
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers


@dataclass(frozen=True, kw_only=True)
class TFRecordSource(shards.RecordSource):
    """The samples of TFRecord files. `starts` are all files' offsets in turn."""

    starts: Integers
    kind: str = shards.TFRECORD

    def payloads(self, file: int, record: int, count: int) -> Iterator[bytes]:
        """Yield successive records of a file, from one read."""
        offset = int(self.firsts[file]) + file + record
        start, end = int(self.starts[offset]), int(self.starts[offset + count])
        return record_file.split(_bytes(self.paths[file], start, end), start, self.paths[file])

    def sizes(self) -> Integers:
        """Return the bytes of each record, frame included."""
        ends = np.cumsum(np.diff(self.firsts) + 1) - 1
        return np.delete(np.diff(self.starts), ends[:-1])[: self.count]


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
    return TFRecordSource(
        paths=tuple(paths),
        firsts=firsts,
        starts=np.concatenate(starts),
        count=count,
        features=features,
        classes=classes,
        notes=notes,
    )


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
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # no more than this part is read from storage
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
