"""The framing of TFRecord files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_matrix.models.inputs.stored import record_file
from keras_matrix.models.inputs.stored.record_file import FRAME_BYTES, framed, offsets, records
from keras_matrix.models.inputs.stored.sample import InputDataError

PAYLOADS = [b"first", b"", b"x" * 5000, bytes(range(256)) * 40]


def write(path: Path, payloads: list[bytes]) -> Path:
    path.write_bytes(b"".join(piece for payload in payloads for piece in framed(payload)))
    return path


def test_masked_checksum_is_that_of_the_documentation() -> None:
    # CRC32C of "123456789" is e3069283 (RFC 3720, B.4); masked as TensorFlow's crc32c.h does.
    assert record_file.checksum(b"123456789") == 0xE3069283
    assert record_file.masked(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("block_bytes", [16, 20, 100, 4096, 1 << 20])
def test_records_are_read_with_blocks_of_any_size(tmp_path: Path, block_bytes: int) -> None:
    path = write(tmp_path / "a.tfrecord", PAYLOADS * 3)
    assert list(records(path, block_bytes=block_bytes)) == PAYLOADS * 3


def test_offsets_are_those_of_the_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", PAYLOADS)
    starts = offsets(path)
    assert np.diff(starts).tolist() == [len(payload) + FRAME_BYTES for payload in PAYLOADS]
    assert list(records(path, start=int(starts[2]))) == PAYLOADS[2:]


def damaged(path: Path, at: int) -> Path:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
def test_wrong_checksum_of_a_payload_is_named_with_its_offset(tmp_path: Path, block_bytes: int) -> None:
    path = damaged(write(tmp_path / "a.tfrecord", [b"whole", b"damaged"]), 5 + FRAME_BYTES + 12)
    found = records(path, block_bytes=block_bytes)
    assert next(found) == b"whole"
    with pytest.raises(InputDataError, match=r"offset 21: the checksum of a record of 7 bytes is wrong"):
        next(found)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "crc32c", None)
    with pytest.raises(InputDataError, match=r"google-crc32c: pip install 'keras-matrix\[inputs\]'"):
        list(records(Path("any")))


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[:-8], lambda data: b"", lambda data: data * 2]
)
def test_index_that_does_not_belong_to_its_file_is_not_used(tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "a.tfrecord", PAYLOADS)
    index = tmp_path / "a.tfrecord.index"
    index.write_bytes(offsets(path).astype("<i8").tobytes())
    stored = record_file.stored_offsets(path)
    assert stored is not None
    assert stored.tolist() == offsets(path).tolist()
    index.write_bytes(change(index.read_bytes()))
    assert record_file.stored_offsets(path) is None
