"""TFRecord and ArrayRecord data sets as sources."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_matrix.models.inputs.stored import page_cache, record_file, shards, writers
from keras_matrix.models.inputs.stored.sample import Sample
from keras_matrix.models.inputs.stored.shards import Manifest, RecordFile
from keras_matrix.models.inputs.stored.source import InputDataError, open_source
from keras_matrix.models.inputs.stored.writers import NamedSample
from tests.models.inputs.stored.data_sets import CLASSES, class_folder, contents, named, record_files

KINDS = ("tfrecord", "array_record")
SAMPLES = [one.sample for one in named(12)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_samples_are_read_in_any_order_across_files(tmp_path: Path, kind: str) -> None:
    source = open_source(record_files(tmp_path, kind))
    assert (source.kind, source.classes, len(source), source.notes) == (kind, CLASSES, 12, ())
    assert source.read(range(12)) == SAMPLES
    wanted = [11, 5, 0, 1, 2, 4, 5, 6, 6]
    assert source.read(wanted) == [SAMPLES[index] for index in wanted]
    assert source.read([]) == []
    assert [source.name(index) for index in (0, 5, 11)] == [
        f"part-0.{kind} record 0",
        f"part-1.{kind} record 0",
        f"part-2.{kind} record 5",
    ]
    assert [path.name for path in source.files()] == [f"part-{number}.{kind}" for number in range(3)]


def test_source_can_be_sent_to_other_processes_and_used_by_threads(tmp_path: Path, kind: str) -> None:
    source = pickle.loads(pickle.dumps(open_source(record_files(tmp_path, kind))))
    with ThreadPoolExecutor(4) as pool:
        orders = [np.random.default_rng(number).permutation(12).tolist() for number in range(40)]
        assert list(pool.map(source.read, orders)) == [[SAMPLES[index] for index in order] for order in orders]


@pytest.mark.process  # the files of the unit tier are in memory, if there is room
def test_no_more_of_a_tfrecord_file_is_read_from_storage_than_its_records(tmp_path: Path) -> None:
    """The kernel would read further where what comes before is in memory, and training may never use it."""
    samples = [NamedSample(Sample(contents(number, 20_000), 0), "apple", f"{number}.jpg") for number in range(100)]
    path = tmp_path / "0.tfrecord"
    writers.write_file(path, "tfrecord", samples)
    source = open_source(tmp_path)
    if page_cache.evict([path]) and page_cache.resident_share([path]):
        pytest.skip("the folder for temporary files is in memory")
    for first in (0, 10, 20):
        source.read(range(first, first + 10))
    share = page_cache.resident_share([path])
    assert share is not None
    assert 0.30 <= share <= 0.31  # 30 of 100 records, and the rest of a page


def test_limit_takes_the_first_records(tmp_path: Path, kind: str) -> None:
    source = open_source(record_files(tmp_path, kind), 5)
    assert (len(source), len(source.sizes()), len(source.files())) == (5, 5, 1)
    assert source.order("window", 0, 4).shuffle == "window"


def test_single_file_is_a_data_set(tmp_path: Path, kind: str) -> None:
    source = open_source(record_files(tmp_path, kind) / f"part-2.{kind}")
    assert source.read(range(6)) == SAMPLES[6:]


def test_truncated_file_is_named(tmp_path: Path, kind: str) -> None:
    path = record_files(tmp_path, kind) / f"part-2.{kind}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputDataError, match=rf"part-2\.{kind}: offset \d+: .*truncated"):
        open_source(tmp_path)


def test_file_of_random_bytes_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(np.random.default_rng(0).bytes(200_000))
    with pytest.raises(InputDataError, match=rf"a\.{kind}: offset \d+: "):
        open_source(tmp_path)


def test_damaged_image_is_named_when_it_is_read(tmp_path: Path, kind: str) -> None:
    path = record_files(tmp_path, kind) / f"part-0.{kind}"
    source = open_source(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.find(SAMPLES[1].data)
    data[at + 100] ^= 255
    path.write_bytes(data)
    assert source.read([0]) == SAMPLES[:1]
    with pytest.raises(InputDataError, match=rf"part-0\.{kind}: "):
        source.read([0, 1, 2])


def test_array_record_that_vanishes_before_it_is_read_is_named(tmp_path: Path) -> None:
    from keras_matrix.models.inputs.stored.source import _reader

    source = open_source(record_files(tmp_path, "array_record"))
    _reader.cache_clear()
    (tmp_path / "part-2.array_record").unlink()
    with pytest.raises(InputDataError, match=r"part-2\.array_record: the file has vanished since it was opened"):
        source.read([6])


def test_successive_records_of_a_tfrecord_file_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(record_files(tmp_path, "tfrecord"))
    calls: list[tuple[int, int]] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (calls.append(given[1:]), real(*given))[1])
    assert source.read([0, 1, 2, 3, 4, 5, 6, 9, 10]) == [SAMPLES[index] for index in (0, 1, 2, 3, 4, 5, 6, 9, 10)]
    assert len(calls) == 4


def test_sizes_of_tfrecord_samples_are_those_of_their_records(tmp_path: Path) -> None:
    source = open_source(record_files(tmp_path, "tfrecord"))
    expected = np.concatenate([np.diff(record_file.offsets(path)) for path in source.files()])
    assert source.sizes().tolist() == expected.tolist()


def test_index_of_other_contents_is_replaced_by_reading_the_lengths(tmp_path: Path) -> None:
    record_files(tmp_path, "tfrecord")
    (tmp_path / "part-1.tfrecord.index").write_bytes(b"nonsense")
    (tmp_path / "part-2.tfrecord.index").unlink()
    source = open_source(tmp_path)
    assert source.notes == ("part-1.tfrecord.index does not belong to its file and is not used",)
    assert source.read(range(12)) == SAMPLES


def described(folder: Path, kind: str) -> Manifest:
    parts = tuple(
        RecordFile(f"part-{number}.{kind}", count, (folder / f"part-{number}.{kind}").stat().st_size)
        for number, count in enumerate((5, 1, 6))
    )
    found = Manifest(kind, {}, ("a", "b", "c", "d"), 12, finished=True, parts=parts)
    shards.write(folder, found)
    return found


def test_manifest_names_the_classes(tmp_path: Path, kind: str) -> None:
    described(record_files(tmp_path, kind), kind)
    assert open_source(tmp_path).classes == ("a", "b", "c", "d")


def test_manifest_of_another_program_is_ignored(tmp_path: Path) -> None:
    class_folder(tmp_path)
    (tmp_path / "manifest.json").write_text('{"version": 3}')
    assert len(open_source(tmp_path)) == 9


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tfrecord", "tfrecord"),
        ("a.tfrecords", "tfrecord"),
        ("a.tfrecord-00001-of-00100", "tfrecord"),
        ("train-00000-of-01024", "tfrecord"),
        ("a.array_record", "array_record"),
        ("a.arrayrecord", "array_record"),
        ("a.array_record-00001-of-00100", "array_record"),
        ("a.tfrecord.index", None),
        (".a.tfrecord", None),
        ("train", None),
    ],
)
def test_format_is_recognised_by_the_name(name: str, kind: str | None) -> None:
    assert shards.kind_of(name) == kind


def test_labels_that_start_at_one_leave_class_zero_without_a_name(tmp_path: Path) -> None:
    samples = [replace(one, sample=replace(one.sample, label=one.sample.label + 1), text="") for one in named(6)]
    writers.write_file(tmp_path / "a.tfrecord", "tfrecord", samples)
    assert open_source(tmp_path).classes == ("0", "1", "2", "3")
