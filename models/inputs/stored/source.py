"""Opens a stored data set: finds out how it is stored, and returns its source with random access to the samples.

TFRecord files have an index of the records' offsets, and one `pread` for successive records. The converter writes
the index beside each file; for other files the lengths are read once when the source is opened. ArrayRecord files
are read with the package array_record; each record is a `tf.train.Example` as well.
Files that the converter writes have one record per chunk (`group_size:1`), so that a random read decodes one record.
A file with larger groups works, but each random read decodes a group.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from keras_matrix.models.inputs.stored import record_file, shards
from keras_matrix.models.inputs.stored.folder import open_folder
from keras_matrix.models.inputs.stored.record_file import Features, WrongExample, decoded, label_and_text
from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Sample, Source
from keras_matrix.models.inputs.stored.shards import Manifest
from keras_matrix.records.host.platform import PLATFORM

__all__ = ["Features", "InputDataError", "Sample", "Source", "open_source"]
# JPEG data cannot be compressed further; without compression reading takes 15 % less CPU time.
WRITER_OPTIONS = "group_size:1,uncompressed"
# Without threads and readahead of its own: the pipeline's workers read, and one record is one read.
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
MOST_OPEN_FILES = 256
LABEL_RUN = 64


def open_source(path: Path, limit: int | None = None, features: Features | None = None) -> Source:
    """Return the source of the data set in a folder, or in a single record file.

    With a `limit`, only so many samples belong to it: of a folder evenly spaced ones, so that all classes remain; of
    record files the first. `features` names the features of record files of other converters. Raises `InputDataError`
    if there is no data set, it is damaged or unfinished, or it has fewer samples.
    """
    path = Path(path).absolute()
    if not path.exists():
        raise InputDataError(f"{path}: no such folder; give the folder of the data set, or run `runner make-images`")
    if limit is not None and limit < 1:
        raise InputDataError(f"{path}: the number of samples must be at least 1, got {limit}")
    kind_and_files = shards.record_files(path)
    if kind_and_files is None:
        shards.finished(path)
        return open_folder(path, limit)
    kind, files = kind_and_files
    opener = open_tfrecord if kind == shards.TFRECORD else open_array_record
    stored_manifest = shards.checked_manifest(files, is_single=path.is_file())
    return opener(files, limit, features or Features(), stored_manifest)


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
    paths: Sequence[Path], limit: int | None, features: Features, stored_manifest: Manifest | None
) -> TFRecordSource:
    """Return the source of TFRecord files. Raises `InputDataError` if one is damaged or has other features."""
    record_file.require_crc32c()
    stored_offsets = [record_file.stored_offsets(path) for path in paths]
    starts = [
        record_file.offsets(path) if file_starts is None else file_starts
        for path, file_starts in zip(paths, stored_offsets, strict=True)
    ]
    firsts = np.concatenate([[0], np.cumsum([len(file_starts) - 1 for file_starts in starts])]).astype(np.int64)
    count = shards.check_limit(paths[0].parent, int(firsts[-1]), limit)
    if stored_manifest is None:
        labels: dict[int, str] = {}
        for path, file_starts in zip(paths, starts, strict=True):
            _collect_tfrecord_labels(path, file_starts, features, labels)
        classes = shards.class_names(labels)
    else:
        classes = stored_manifest.classes
        decoded_first = _bytes(paths[0], 0, int(starts[0][1]))
        try:
            decoded(next(record_file.split(decoded_first, 0, paths[0])), features)
        except WrongExample as error:
            shards.refuse(f"{paths[0]}: record 0", error)
    notes = tuple(
        f"{path.name}{record_file.INDEX_SUFFIX} does not belong to its file and is not used"
        for path, file_starts in zip(paths, stored_offsets, strict=True)
        if file_starts is None and path.with_name(path.name + record_file.INDEX_SUFFIX).exists()
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


def _collect_tfrecord_labels(path: Path, starts: Integers, features: Features, labels: dict[int, str]) -> None:
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
            PLATFORM.advise(handle, "RANDOM")  # no more than this part is read from storage
            data = os.pread(handle, end - start, start)
            while start + len(data) < end and (chunk := os.pread(handle, end - start - len(data), start + len(data))):
                data += chunk
            return data
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise InputDataError(
            f"{path}: offset {start}: the file has vanished since it was opened; restore it, or start again"
        ) from None
    except OSError as error:
        raise InputDataError(f"{path}: offset {start}: cannot be read: {error.strerror}") from None


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
        means = np.array([size_bytes for _, size_bytes in self.identities], np.int64) // np.maximum(counts, 1)
        return np.repeat(means, counts)[: self.count]


def open_array_record(
    paths: Sequence[Path], limit: int | None, features: Features, stored_manifest: Manifest | None
) -> ArrayRecordSource:
    """Return the source of ArrayRecord files. Raises `InputDataError` if one is damaged or has other features."""
    identities = tuple(identity(path) for path in paths)
    counts = [_reader(path, file_identity).num_records() for path, file_identity in zip(paths, identities, strict=True)]
    firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    count = shards.check_limit(paths[0].parent, int(firsts[-1]), limit)
    labels: dict[int, str] = {}
    for path, file_identity, total in zip(paths, identities, counts, strict=True):
        # With a manifest, the first record is enough to check the names of the features.
        _collect_record_labels((path, file_identity), total if stored_manifest is None else 1, features, labels)
    classes = shards.class_names(labels) if stored_manifest is None else stored_manifest.classes
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


def _collect_record_labels(
    file: tuple[Path, tuple[int, int]], count: int, features: Features, labels: dict[int, str]
) -> None:
    for first in range(0, count, LABEL_RUN):
        for number, payload in enumerate(payloads(*file, first, min(LABEL_RUN, count - first)), start=first):
            try:
                label, text = label_and_text(payload, features)
            except WrongExample as error:
                shards.refuse(f"{file[0]}: record {number}", error)
            if not labels.get(label):
                labels[label] = text
