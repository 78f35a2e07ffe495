"""Writes record files: each under a temporary name, verified after writing, and then renamed.

Verification reads the file again with its checksums, and compares the CRC32C of every record with that of the bytes
that the source delivered. So a file with its final name is complete and correct.

A module of its own: it imports google_crc32c, which a command that writes no records does not need.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_matrix.models.inputs.stored import record_file, shards, source
from keras_matrix.models.inputs.stored.command import check_stopped
from keras_matrix.models.inputs.stored.record_file import before_image
from keras_matrix.models.inputs.stored.sample import InputDataError, Sample
from keras_matrix.models.inputs.stored.shards import RecordFile

WRITE_BYTES = 1 << 20
MOST_PIECES = 900  # of one writev; the system's limit is 1,024
VERIFY_RUN = 16


@dataclass(frozen=True, slots=True)
class NamedSample:
    """A sample, the name of its class and the name of its file."""

    sample: Sample
    text: str
    file: str


class Writer(Protocol):
    """A record file that is being written."""

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""

    def close(self) -> None:
        """Write everything to the device."""


class TFRecordWriter:
    """Writes records with `writev`, without copying them together. `starts` are the offsets so far."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.starts = array("q", [0])

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""
        self._pieces += record_file.framed(start, end, crc)
        record_bytes = len(start) + len(end) + record_file.FRAME_BYTES
        self._waiting += record_bytes
        self.starts.append(self.starts[-1] + record_bytes)
        if self._waiting >= WRITE_BYTES or len(self._pieces) >= MOST_PIECES:
            self._flush()

    def close(self) -> None:
        """Write everything to the device."""
        try:
            self._flush()
            os.fsync(self._handle)
        finally:
            os.close(self._handle)

    def _flush(self) -> None:
        written_bytes = os.writev(self._handle, self._pieces) if self._pieces else 0
        if written_bytes < self._waiting:
            unwritten = memoryview(b"".join(self._pieces))[written_bytes:]
            while unwritten:
                unwritten = unwritten[os.write(self._handle, unwritten) :]
        self._pieces, self._waiting = [], 0


class ArrayRecordWriter:
    """Writes an ArrayRecord file with one record per chunk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = source.module().ArrayRecordWriter(str(path), source.WRITER_OPTIONS)

    def write(self, start: bytes, end: bytes, crc: int) -> None:
        """Append a record, whose payload is `start` and `end` with this CRC32C."""
        self._checked(self._writer.write, start + end)

    def close(self) -> None:
        """Write everything to the device."""
        self._checked(self._writer.close)
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

    def _checked(self, call: Callable[..., Any], *arguments: bytes) -> None:
        try:
            call(*arguments)
        except RuntimeError as error:
            raise OSError(errno.EIO, f"cannot be written: {str(error).splitlines()[0]}", str(self._path)) from None


def write_file(path: Path, kind: str, samples: Iterable[NamedSample]) -> RecordFile:
    """Write, verify and publish a record file. Raises OSError, or `InputDataError` if the source cannot be read."""
    partial = path.with_name(f".{path.name}.part")
    try:
        writer = TFRecordWriter(partial) if kind == shards.TFRECORD else ArrayRecordWriter(partial)
        checksums = array("q")
        try:
            for named_sample in samples:
                start = before_image(named_sample.sample, named_sample.text, named_sample.file)
                checksums.append(record_file.checksum(start, named_sample.sample.data))
                writer.write(start, named_sample.sample.data, checksums[-1])
        finally:
            writer.close()
        _verify(partial, kind, checksums)
        if isinstance(writer, TFRecordWriter):
            write_index(path, writer.starts)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return RecordFile(path.name, len(checksums), path.stat().st_size)


def existing(path: Path, kind: str, record_count: int) -> RecordFile | None:
    """Return what is known of a file that an earlier start of the command finished; None if it must be written."""
    if not path.exists():
        return None
    if kind == shards.TFRECORD:
        starts = record_file.stored_offsets(path)
        stored_records = None if starts is None else len(starts) - 1
    else:
        try:
            stored_records = source.record_count(path)
        except InputDataError:
            stored_records = None
    return RecordFile(path.name, record_count, path.stat().st_size) if stored_records == record_count else None


def write_index(path: Path, starts: array[int]) -> None:
    """Write the offsets of the records and the file's size beside a TFRecord file, as little-endian 64-bit numbers."""
    index = path.with_name(path.name + record_file.INDEX_SUFFIX)
    partial = index.with_name(f".{index.name}.part")
    partial.write_bytes(np.array(starts, "<i8").tobytes())
    partial.replace(index)


def _verify(path: Path, kind: str, checksums: array[int]) -> None:
    """Compare the records of a file with the checksums of what was to be written."""
    number = -1
    try:
        for number, crc in enumerate(_checksums(path, kind, len(checksums))):
            if number % VERIFY_RUN == 0:
                check_stopped()
            if number >= len(checksums) or crc != checksums[number]:
                raise _not_written(path, f"record {number} differs from its source")
    except InputDataError as error:
        raise _not_written(path, str(error)) from None
    if number + 1 != len(checksums):
        raise _not_written(path, f"has {number + 1} of {len(checksums)} records")


def _checksums(path: Path, kind: str, count: int) -> Iterator[int]:
    """Yield the CRC32C of each record of a file, computed from what the file contains now."""
    if kind == shards.TFRECORD:
        yield from (crc for _, crc in record_file.checked_records(path))
        return
    identity = source.identity(path)
    for first in range(0, count, VERIFY_RUN):
        payloads = source.payloads(path, identity, first, min(VERIFY_RUN, count - first))
        yield from map(record_file.checksum, payloads)
    source.close_files()


def _not_written(path: Path, reason: str) -> OSError:
    text = f"the file is not what was written ({reason}); check the disk and the memory of this machine"
    return OSError(errno.EIO, text, str(path))
