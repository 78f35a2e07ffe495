"""One batch from storage to arrays: contents, order, stages, bad images and injected delays."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_matrix.models.inputs.pipelines.batch_loader import (
    STAGES,
    BatchLoader,
    Injected,
)
from keras_matrix.models.inputs.pipelines.decode import Decode
from keras_matrix.models.inputs.pipelines.pipeline import CachedLoader, cached
from keras_matrix.models.inputs.pipelines.pixels import TF
from keras_matrix.models.inputs.stored.source import InputDataError, open_source
from keras_matrix.records.instruments.input_use import BAD_SAMPLES_DIR, BAD_SAMPLES_FILE
from tests.models.inputs.pipelines.jpegs import folder

SIZE, BATCH = 32, 4


def loader_of(path: Path, shuffle: str = "none", **options: object) -> BatchLoader:
    source = open_source(path)
    return BatchLoader(source, source.order(shuffle, 0, BATCH), Decode("pil", SIZE), **options)  # type: ignore[arg-type]


@pytest.fixture
def loader(tmp_path: Path) -> BatchLoader:
    return loader_of(folder(tmp_path / "images"))


def test_batch_has_the_images_and_labels_of_its_samples(loader: BatchLoader) -> None:
    x, y = loader(1)
    assert (x.shape, x.dtype, y.dtype) == ((BATCH, SIZE, SIZE, 3), np.uint8, np.int32)
    assert y.tolist() == [1, 1, 1, 1]  # of 12 images in 3 classes, in order
    alone = np.zeros((SIZE, SIZE, 3), np.uint8)
    loader.decode.into(alone, loader.source.read([5])[0].data)
    assert (x[1] == alone).all()


def test_pass_reads_every_sample_once_and_begins_again(tmp_path: Path) -> None:
    loader = loader_of(folder(tmp_path / "images"), "global")
    firsts = [loader.order.indices(number) for number in range(3)]
    assert sorted(np.concatenate(firsts)) == list(range(12))
    assert sorted(np.concatenate([loader.order.indices(number) for number in range(3, 6)])) == list(range(12))
    assert loader(300)[1].shape == (BATCH,)


def test_loader_is_a_function_of_the_number_in_any_thread_or_process(loader: BatchLoader) -> None:
    expected = [loader(number) for number in range(6)]
    copy = pickle.loads(pickle.dumps(loader))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(copy, range(6)))
    assert all((a == c).all() and (b == d).all() for (a, b), (c, d) in zip(expected, found, strict=True))


def test_pixels_scaled_on_the_host_are_float32(tmp_path: Path) -> None:
    path = folder(tmp_path / "images")
    plain, scaled = loader_of(path), loader_of(path, scaling=TF)
    assert (scaled.dtype, scaled(0)[0].dtype) == ("float32", np.float32)
    assert np.allclose(scaled(0)[0], plain(0)[0] / 127.5 - 1, atol=1e-6)


def test_stages_are_times_bytes_and_number(loader: BatchLoader) -> None:
    x, y, stages = loader.timed(2)
    assert ((x == loader(2)[0]).all(), (y == loader(2)[1]).all()) == (True, True)
    found = dict(zip(STAGES, stages, strict=True))
    assert found["bytes"] == sum(len(one.data) for one in loader.source.read([8, 9, 10, 11]))
    assert (stages.dtype, found["batch"]) == (np.float64, 2)
    assert 0 < found["prepare_cpu_s"] <= found["prepare_wall_s"] * 1.5
    assert 0 < found["fetch_wall_s"] < 10


def test_injected_wait_is_fetch_time_without_cpu_time(loader: BatchLoader) -> None:
    stages = replace(loader, injected=Injected(fetch_delay_ms=5.0)).timed(0)[2]
    assert stages[0] >= BATCH * 0.005
    assert stages[1] < stages[0] / 2


def test_injected_computation_is_cpu_time_of_preparing(loader: BatchLoader) -> None:
    stages = replace(loader, injected=Injected(prepare_spin_ms=5.0)).timed(0)[2]
    assert stages[3] >= BATCH * 0.005
    assert stages[1] < 0.01


# Bad images.


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = folder(tmp_path / "images")
    whole = path / "class0" / "003.jpg"
    whole.write_bytes(whole.read_bytes()[:900])
    (path / "class1" / "004.jpg").write_bytes(b"")
    return path


def test_bad_image_ends_the_batch_with_the_name_of_its_file(damaged: Path) -> None:
    with pytest.raises(InputDataError, match=r"class0/003\.jpg: is truncated: .*; remove or replace it, or set bad_im"):
        loader_of(damaged)(0)


def test_skipped_image_is_replaced_by_the_next_and_reported(
    damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BAD_SAMPLES_DIR, str(tmp_path))
    loader = loader_of(damaged, skips_bad=True)
    (x, y), second = loader(0), loader(1)
    assert (x[1] == x[2]).all()
    assert y.tolist() == [0, 0, 0, 0]
    assert second[1].tolist() == [1, 1, 1, 1]
    assert (tmp_path / BAD_SAMPLES_FILE).read_text().splitlines() == ["class0/003.jpg", "class1/004.jpg"]


def test_file_that_vanishes_is_named_or_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "images")
    strict, lenient = loader_of(path), loader_of(path, skips_bad=True)
    (path / "class0" / "006.jpg").unlink()
    with pytest.raises(InputDataError, match=r"006\.jpg: the file has vanished"):
        strict(0)
    x, y = lenient(0)
    assert (x[2] == x[3]).all()
    assert y.tolist() == [0, 0, 0, 0]


def test_data_set_without_any_good_image_is_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path / "images")
    for file in path.rglob("*.jpg"):
        file.write_bytes(b"no image")
    with pytest.raises(InputDataError, match="no sample of the data set can be decoded"):
        loader_of(path, skips_bad=True)(0)


def test_name_with_a_line_break_is_one_line_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BAD_SAMPLES_DIR, str(tmp_path))
    path = folder(tmp_path / "images")
    (path / "class0" / "000\nб.jpg").write_bytes(b"no image")
    loader = loader_of(path, skips_bad=True)
    loader(0)
    assert (tmp_path / BAD_SAMPLES_FILE).read_text().splitlines() == ["class0/000\\nб.jpg"]


# The cache.


def test_cached_batches_are_the_same_and_read_no_file_again(tmp_path: Path) -> None:
    path = folder(tmp_path / "images")
    plain = loader_of(path, "global")
    kept = cached(plain, 1)
    expected = [plain(number) for number in range(9)]
    first = [kept(number) for number in range(3)]
    for file in path.rglob("*.jpg"):
        file.unlink()
    later = [kept(number) for number in range(3, 9)]
    assert all((a[0] == b[0]).all() and (a[1] == b[1]).all() for a, b in zip(expected, first + later, strict=True))
    stages = kept.timed(5)[2]
    assert (stages[0], stages[4], stages[5]) == (0, 0, 5)


def test_cached_loader_is_pickled_without_its_images(loader: BatchLoader) -> None:
    kept = cached(loader, 1)
    kept(0)
    data = pickle.dumps(kept)
    assert len(data) < len(pickle.dumps(loader)) + 500
    assert isinstance(pickle.loads(data), CachedLoader)


def test_cache_larger_than_half_of_the_memory_is_refused(loader: BatchLoader) -> None:
    many = replace(loader, order=replace(loader.order, count=2**40), decode=replace(loader.decode, image_size=224))
    with pytest.raises(ValueError, match=r"cache: ram needs 301,056 TiB in 2 worker processes for 1099511627776 im"):
        cached(many, 2)


def test_waiting_loader_releases_the_interpreter(loader: BatchLoader) -> None:
    slow = replace(loader, injected=Injected(fetch_delay_ms=25.0))
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(slow, range(4)))
    assert time.perf_counter() - begun_s < 4 * BATCH * 0.025
