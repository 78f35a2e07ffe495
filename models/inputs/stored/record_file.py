"""TFRecord files and their records, `tf.train.Example` messages, read and written without TensorFlow.

A record is its length (8 bytes, little-endian), the masked CRC32C of the length, the payload, and the masked CRC32C of
the payload (https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).
Reading, indexing and writing verify every checksum.

An Example is a map from a feature's name to a list of byte strings, floating-point numbers or integers. These have the
names that TensorFlow's and Keras's converters of ImageNet use, or those of TensorFlow Datasets, `image` and `label`;
`Features` selects others for foreign files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path

import numpy as np

from keras_matrix.models.inputs.stored.sample import InputDataError, Integers, Sample
from keras_matrix.records.protobuf import (
    Malformed,
    encoded_piece,
    encoded_varint,
    fields,
    opening,
    piece,
    varint,
)

TEXT, FILE = "image/class/text", "image/filename"
BYTES_LIST, INT64_LIST = 1, 3
try:
    from google_crc32c import extend
    from google_crc32c import value as crc32c
except ImportError:  # pragma: no cover - the message is tested by its own function
    crc32c = None
HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
MASK = 0xA282EAD8
# One read system call of the sequential reader. 1 MiB stays in a core's cache: 8 % faster than 4 MiB.
BLOCK_BYTES = 1 << 20
INDEX_SUFFIX = ".index"
GZIP_MAGIC = b"\x1f\x8b"


def require_crc32c() -> None:
    """Raise `InputDataError` if the package that computes checksums is missing."""
    if crc32c is None:
        raise InputDataError("TFRecord files need the package google-crc32c: pip install 'keras-matrix[inputs]'")


def checksum(start: bytes, end: bytes = b"") -> int:
    """Return the CRC32C of these bytes."""
    return int(extend(crc32c(start), end)) if end else int(crc32c(start))


def masked(data: bytes) -> int:
    """Return the checksum of these bytes as it is stored: CRC32C, rotated by 15 bits, plus a constant."""
    return _masked(checksum(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def framed(start: bytes, end: bytes = b"", crc: int | None = None) -> tuple[bytes, bytes, bytes]:
    """Return the parts of a record to write one after another.

    Its payload is `start` and `end`, which are not copied together, and `crc` its checksum, if it is known.
    """
    length = (len(start) + len(end)).to_bytes(8, "little")
    crc = checksum(start, end) if crc is None else crc
    return length + FOOTER.pack(masked(length)) + start, end, FOOTER.pack(_masked(crc))


def records(path: Path, start: int = 0, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the payload of each record from the offset `start` on, in large reads. Raises `InputDataError`.

    A block begins at a record, so that nothing is copied together: less than one record per block is read twice.
    """
    return (payload for payload, _ in checked_records(path, start, block_bytes))


def checked_records(path: Path, start: int = 0, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[bytes, int]]:
    """Yield the payload of each record and its CRC32C, as `records`."""
    require_crc32c()
    with _opened(path) as file:
        handle, size_bytes = file.fileno(), _size(file.fileno(), path)
        while start < size_bytes:
            block = os.pread(handle, block_bytes, start)
            used_bytes = 0
            for payload, end, crc in _complete(block, start, path):
                used_bytes = end
                yield payload, crc
            start += used_bytes
            if used_bytes:
                continue
            # No complete record in this block: it is longer than a block, or damaged.
            payload = _one(handle, start, size_bytes, path)
            start += len(payload) + FRAME_BYTES
            yield payload, checksum(payload)


def split(data: bytes, start: int, path: Path) -> Iterator[bytes]:
    """Yield the payload of each record in bytes that were read from the offset `start` of a file."""
    require_crc32c()
    offset = 0
    for payload, end, _ in _complete(data, start, path):
        offset = end
        yield payload
    if offset < len(data):
        raise _truncated(path, start + offset, len(data) - offset)


def offsets(path: Path) -> Integers:
    """Return the offset of each record and the size of the file: (records + 1,) int64, by reading the lengths alone."""
    require_crc32c()
    with _opened(path) as file:
        handle, size_bytes = file.fileno(), _size(file.fileno(), path)
        starts, offset = [0], 0
        while offset < size_bytes:
            offset += _length(os.pread(handle, HEADER.size, offset), offset, size_bytes, path) + FRAME_BYTES
            starts.append(offset)
    return np.array(starts, np.int64)


def stored_offsets(path: Path) -> Integers | None:
    """Return the offsets from the index beside a file; None if it is missing or belongs to other contents."""
    index = path.with_name(path.name + INDEX_SUFFIX)
    try:
        starts = np.frombuffer(index.read_bytes(), "<i8").astype(np.int64)
        size_bytes = path.stat().st_size
    except (OSError, ValueError):
        return None
    fits = (
        len(starts) > 1 and starts[0] == 0 and starts[-1] == size_bytes and bool((np.diff(starts) >= FRAME_BYTES).all())
    )
    return starts if fits else None


def _complete(block: bytes, start: int, path: Path) -> Iterator[tuple[bytes, int, int]]:
    """Yield the payload of each record that ends within a block, where it ends, and its CRC32C."""
    offset, block_bytes = 0, len(block)
    header, footer, crc = HEADER.unpack_from, FOOTER.unpack_from, crc32c
    while offset + FRAME_BYTES <= block_bytes:
        length, length_crc = header(block, offset)
        # As in `masked`, written out: a call costs a fifth of the time of a record of 1 KB.
        computed_crc = crc(block[offset : offset + 8])
        if ((computed_crc >> 15 | computed_crc << 17) + MASK) & 0xFFFFFFFF != length_crc:
            raise _bad_length(block[offset : offset + 8], start + offset, path)
        begin = offset + 12
        end = begin + length
        if end + 4 > block_bytes:
            return
        payload = block[begin:end]
        computed_crc = crc(payload)
        if ((computed_crc >> 15 | computed_crc << 17) + MASK) & 0xFFFFFFFF != footer(block, end)[0]:
            raise InputDataError(
                f"{path}: offset {start + offset}: the checksum of a record of {length} bytes is wrong; "
                f"the file is damaged: write it again, or copy it again"
            )
        offset = end + 4
        yield payload, offset, computed_crc


def _one(handle: int, start: int, size_bytes: int, path: Path) -> bytes:
    """Return the payload of a record of any length."""
    length = _length(os.pread(handle, HEADER.size, start), start, size_bytes, path)
    data = b""
    while len(data) < length + FRAME_BYTES:
        chunk = os.pread(handle, length + FRAME_BYTES - len(data), start + len(data))
        if not chunk:
            raise _truncated(path, start, len(data))
        data = data + chunk if data else chunk
    return next(split(data, start, path))


def _length(header: bytes, start: int, size_bytes: int, path: Path) -> int:
    """Return the length in a header. Raises `InputDataError` if it is damaged, or the record longer than the file."""
    if len(header) < HEADER.size:
        raise _truncated(path, start, size_bytes - start)
    length, crc = HEADER.unpack(header)
    if masked(header[:8]) != crc:
        raise _bad_length(header, start, path)
    if start + length + FRAME_BYTES > size_bytes:
        raise _truncated(path, start, size_bytes - start)
    return int(length)


def _bad_length(header: bytes, start: int, path: Path) -> InputDataError:
    if start == 0 and header.startswith(GZIP_MAGIC):
        return InputDataError(f"{path}: offset 0: is compressed with gzip, which is not supported; run gunzip on it")
    problem = "is not a TFRecord file" if start == 0 else "the checksum of a length is wrong"
    return InputDataError(f"{path}: offset {start}: {problem}, or damaged; write it again, or copy it again")


def _truncated(path: Path, start: int, left_bytes: int) -> InputDataError:
    return InputDataError(
        f"{path}: offset {start}: the record is truncated, {left_bytes} bytes are left in the file; write or copy it "
        "again"
    )


def _opened(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise InputDataError(f"{path}: the file is missing or has vanished; restore it, or start again") from None
    except OSError as error:
        raise InputDataError(f"{path}: cannot be read: {error.strerror}") from None


def _size(handle: int, path: Path) -> int:
    size_bytes = os.fstat(handle).st_size
    if size_bytes == 0:
        raise InputDataError(f"{path}: offset 0: the file is empty (0 bytes); delete it, or write it again")
    return size_bytes


class WrongExample(ValueError):
    """The record is no Example, or lacks a feature; the caller adds which record."""


@dataclass(frozen=True, slots=True)
class Features:
    """The names of the features with the encoded image and the label."""

    image: str = "image/encoded"
    label: str = "image/class/label"


IMAGENET, TFDS = Features(), Features("image", "label")


def encoded(sample: Sample, text: str, file: str) -> bytes:
    """Return the Example of a sample, with the name of its class and of its file."""
    return before_image(sample, text, file) + sample.data


def before_image(sample: Sample, text: str, file: str) -> bytes:
    """Return the part of the Example before the image, which is its end, so that the image need not be copied."""
    small = _class_entries(sample.label, text) + _entry(FILE.encode(), BYTES_LIST, encoded_piece(1, os.fsencode(file)))
    image_bytes = len(sample.data)
    # From the inside out: the list's value, the list, the entry with its key, the map.
    prefix = opening(1, image_bytes)
    prefix = opening(1, len(prefix) + image_bytes) + prefix
    prefix = IMAGE_KEY + opening(2, len(prefix) + image_bytes) + prefix
    prefix = opening(1, len(prefix) + image_bytes) + prefix
    return opening(1, len(small) + len(prefix) + image_bytes) + small + prefix


def decoded(payload: bytes | memoryview, names: Features) -> Sample:
    """Return the sample in an Example. Raises `WrongExample`, which names the features that it has."""
    features = features_of(payload)
    names = _present(features, names)
    values = _values(_wanted(features, names.image), BYTES_LIST)
    if not values:
        raise WrongExample(f"feature {names.image!r} has no bytes; it must contain one encoded image")
    return Sample(bytes(piece(values[0])), _label(features, names))


def label_and_text(payload: bytes | memoryview, names: Features) -> tuple[int, str]:
    """Return the label of an Example and the name of its class, empty without one; does not touch the image's bytes."""
    features = features_of(payload)
    names = _present(features, names)
    _wanted(features, names.image)
    texts = _values(features[TEXT], BYTES_LIST) if TEXT in features else ()
    return _label(features, names), os.fsdecode(bytes(piece(texts[0]))) if texts else ""


def features_of(payload: bytes | memoryview) -> dict[str, memoryview]:
    """Return the features of an Example by name, as messages. Raises `WrongExample`."""
    feature_by_name = {}
    try:
        for top, features in fields(memoryview(payload)):
            for inner, entry in fields(piece(features)) if top == 1 else ():
                if inner == 1:
                    field_by_number = dict(fields(piece(entry)))
                    feature_by_name[str(piece(field_by_number[1]), "utf-8", "backslashreplace")] = piece(
                        field_by_number[2]
                    )
    except (Malformed, IndexError, KeyError) as error:
        raise WrongExample(f"is not a tf.train.Example: {error}") from None
    return feature_by_name


def _present(features: dict[str, memoryview], names: Features) -> Features:
    """Return the names to use: those of TensorFlow Datasets if a record has these and not the usual ones."""
    has_usual_names = names.image in features or names != IMAGENET
    return names if has_usual_names or not {TFDS.image, TFDS.label} <= features.keys() else TFDS


def _wanted(features: dict[str, memoryview], name: str) -> memoryview:
    try:
        return features[name]
    except KeyError:
        names = ", ".join(sorted(features)) or "no features"
        raise WrongExample(
            f"has no feature {name!r}; it has {names}; write the image and its label as {IMAGENET.image} and "
            f"{IMAGENET.label}, or as {TFDS.image} and {TFDS.label}"
        ) from None


def _label(features: dict[str, memoryview], names: Features) -> int:
    values = _values(_wanted(features, names.label), INT64_LIST)
    if not values:
        raise WrongExample(f"feature {names.label!r} has no integer; it must contain one label")
    first_value = values[0]
    label = first_value if isinstance(first_value, int) else varint(first_value, 0)[0]
    if label >= 1 << 31:
        raise WrongExample(f"feature {names.label!r} must be a label from 0, got {label - (1 << 64)}")
    return label


def _values(feature: memoryview, kind: int) -> Sequence[int | memoryview]:
    """Return the list in a feature; packed integers are one item. Empty if the feature is of another kind."""
    try:
        lists = [value for field, value in fields(feature) if field == kind]
        values = [value for packed in lists for field, value in fields(piece(packed)) if field == 1]
        return [value for value in values if isinstance(value, int) or len(value)]
    except (Malformed, IndexError) as error:
        raise WrongExample(f"is not a tf.train.Example: {error}") from None


@lru_cache(1024)
def _class_entries(label: int, text: str) -> bytes:
    entry = _entry(b"image/class/label", INT64_LIST, encoded_piece(1, encoded_varint(label)))
    return entry + _entry(TEXT.encode(), BYTES_LIST, encoded_piece(1, os.fsencode(text)))


def _entry(name: bytes, kind: int, values: bytes) -> bytes:
    return encoded_piece(1, encoded_piece(1, name) + encoded_piece(2, encoded_piece(kind, values)))


IMAGE_KEY = encoded_piece(1, b"image/encoded")
