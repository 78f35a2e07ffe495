"""Writing record files: verified, and published only when complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_matrix.models.inputs.stored import record_file, writers
from keras_matrix.models.inputs.stored.convert import cut
from keras_matrix.models.inputs.stored.record_file import encoded
from keras_matrix.models.inputs.stored.sample import InputDataError, Sample
from keras_matrix.models.inputs.stored.source import open_source
from keras_matrix.models.inputs.stored.writers import NamedSample
from tests.models.inputs.stored.data_sets import contents, named

KINDS = ("tfrecord", "array_record")


@pytest.mark.parametrize("kind", KINDS)
def test_written_file_is_complete_and_known_to_a_later_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    part = writers.write_file(path, kind, named(20))
    assert (part.name, part.records, part.bytes) == (path.name, 20, path.stat().st_size)
    assert open_source(path).read(range(20)) == [one.sample for one in named(20)]
    assert writers.existing(path, kind, 20) == part
    assert writers.existing(path, kind, 19) is None
    path.write_bytes(path.read_bytes()[:-100])
    assert writers.existing(path, kind, 20) is None


def test_index_beside_a_tfrecord_file_has_its_offsets(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    writers.write_file(path, "tfrecord", named(20))
    stored = record_file.stored_offsets(path)
    assert stored is not None
    assert stored.tolist() == record_file.offsets(path).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_failure_of_the_source_leaves_no_file(tmp_path: Path, kind: str) -> None:
    def failing() -> Iterator[NamedSample]:
        yield from named(3)
        raise InputDataError("cat/1.jpg: the file has vanished")

    with pytest.raises(InputDataError, match="has vanished"):
        writers.write_file(tmp_path / f"a.{kind}", kind, failing())
    assert list(tmp_path.iterdir()) == []


def test_tfrecord_that_is_damaged_while_it_is_written_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def damaging(handle: int, pieces: list[bytes]) -> int:
        data = bytearray(b"".join(pieces))
        data[1000] ^= 1
        return real(handle, data)

    monkeypatch.setattr(os, "writev", damaging)
    with pytest.raises(OSError, match=r"the file is not what was written \(.*: offset \d+: the checksum of a record"):
        writers.write_file(tmp_path / "a.tfrecord", "tfrecord", named(9))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: [found[1], *found[1:]], "record 0 differs from its source"),
        (lambda found: found[:-1], "has 8 of 9 records"),
    ],
    ids=["another record", "a record less"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_file_with_other_records_is_not_published(
    tmp_path: Path, kind: str, change: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writers._checksums
    monkeypatch.setattr(writers, "_checksums", lambda *given: change(list(real(*given))))
    with pytest.raises(OSError, match=reason):
        writers.write_file(tmp_path / f"a.{kind}", kind, named(9))
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space left on device"):
        writers.write_file(tmp_path / "a.tfrecord", "tfrecord", named(3))
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "writev", lambda handle, pieces: real(handle, b"".join(pieces)[:100]))
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:1000]))
    path = tmp_path / "a.tfrecord"
    writers.write_file(path, "tfrecord", named(20))
    assert list(record_file.records(path)) == [encoded(one.sample, one.text, one.file) for one in named(20)]


def test_large_images_are_written_and_read(tmp_path: Path) -> None:
    large = [NamedSample(Sample(contents(number, 3_000_000), number), "c", "f") for number in range(3)]
    writers.write_file(tmp_path / "a.tfrecord", "tfrecord", large)
    assert open_source(tmp_path).read([2, 0, 1]) == [large[number].sample for number in (2, 0, 1)]


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([10] * 6, 25, [0, 2, 4, 6]),
        ([10] * 6, 20, [0, 2, 4, 6]),
        ([10] * 5, 1000, [0, 5]),
        ([30, 10, 10, 99, 5], 20, [0, 1, 3, 4, 5]),
        ([7], 1, [0, 1]),
    ],
)
def test_files_are_cut_at_the_size_and_a_larger_record_has_its_own(
    sizes: list[int], most: int, expected: list[int]
) -> None:
    assert cut(np.array(sizes), most).tolist() == expected
