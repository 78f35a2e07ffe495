"""Samples are equal for equal seeds, with valid range and shape; missing data gives a clear error."""

import dataclasses
import hashlib
import io
import pickle
import sys
import tarfile
import types

import numpy as np
import pytest

from keras_matrix.models.inputs import synthetic
from keras_matrix.models.inputs.images import (
    SOURCES,
    DatasetUnavailable,
    Images,
    image_samples,
    load_keras_dataset,
    resized,
)
from keras_matrix.models.workload import Request

KNOWN_PIXELS = [94, 129, 193, 216, 206, 234, 14, 162]


def samples(data, images, count, seed, **options):
    return image_samples(Request({}, data, None), images, **options)(count, seed)


def test_synthetic_images_are_the_same_on_every_machine():
    pixels = synthetic.images(2, (2, 2), seed=0)
    assert np.rint(pixels * 255).astype(int).ravel().tolist() == KNOWN_PIXELS


def test_sample_does_not_depend_on_the_number_of_samples(monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK_BYTES", 64)
    many, few = synthetic.images(50, (3, 3), 7), synthetic.images(20, (3, 3), 7)
    assert (many[:20] == few).all()


def test_blocks_and_seeds_differ(monkeypatch):
    monkeypatch.setattr(synthetic, "BLOCK_BYTES", 64)
    pixels = synthetic.images(14, (3, 3), 7)
    assert not (pixels[:7] == pixels[7:]).all()
    assert not (pixels == synthetic.images(14, (3, 3), 8)).all()


def test_synthetic_images_are_float32_in_zero_to_below_one_and_use_the_whole_range():
    pixels = synthetic.images(100, (16, 16, 3), 0)
    assert pixels.dtype == np.float32
    assert (pixels.min(), np.rint(pixels.max() * 255)) == (0.0, 254)


def test_boolean_sequences_are_fair_zeros_and_ones():
    flips = synthetic.booleans(100, (40, 60), 0)
    assert set(np.unique(flips)) == {0.0, 1.0}
    assert abs(flips.mean() - 0.5) < 0.01


def test_labels_cover_every_class_and_one_hot_rows_hold_one_one():
    numbers = synthetic.labels(1000, 10, 0)
    rows = synthetic.one_hot(numbers, 10)
    assert sorted(set(numbers.tolist())) == list(range(10))
    assert (rows.argmax(axis=1) == numbers).all()
    assert (rows.sum(axis=1) == 1).all()


def test_tokens_are_int32_below_the_vocabulary():
    tokens = synthetic.tokens(100, 16, 50, 0)
    assert (tokens.dtype, tokens.shape, tokens.min(), tokens.max()) == (np.int32, (100, 16), 0, 49)


def test_digits_are_enlarged_coloured_and_repeated():
    x, y = samples("digits", Images(32, 3, 10), 2000, 0)
    assert (x.shape, x.dtype, y.shape) == ((2000, 32, 32, 3), np.float32, (2000, 10))
    assert (x.min(), x.max()) == (0.0, 1.0)
    assert (x[:203] == x[1797:]).all()
    assert (y[:203] == y[1797:]).all()


def test_digits_are_shuffled_by_seed_alone():
    images = Images(8, 1, 10)
    first, again, other = (samples("digits", images, 100, seed, shape=(64,))[0] for seed in (1, 1, 2))
    assert first.shape == (100, 64)
    assert (first == again).all()
    assert not (first == other).all()


def test_resizing_to_the_same_size_changes_nothing_and_to_twice_interpolates():
    pixels = np.array([[0, 255], [0, 255]], np.uint8).reshape(1, 2, 2, 1)
    assert resized(pixels, Images(2, 1, 1)).ravel().tolist() == [0.0, 1.0, 0.0, 1.0]
    assert resized(pixels, Images(4, 1, 1))[0, 0, :, 0].tolist() == [0.0, 0.25, 0.75, 1.0]


def test_colour_becomes_grey_by_its_mean():
    pixels = np.array([0, 0, 255], np.uint8).reshape(1, 1, 1, 3)
    assert resized(pixels, Images(1, 1, 1)).ravel().tolist() == pytest.approx([1 / 3])


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DatasetUnavailable, match="install scikit-learn"):
        samples("digits", Images(8, 1, 10), 4, 0)


def test_a_missing_file_is_named_with_its_address(tmp_path):
    with pytest.raises(DatasetUnavailable) as raised:
        load_keras_dataset("keras:mnist", str(tmp_path))
    assert f"cannot use {tmp_path / 'mnist.npz'}: No such file or directory" in str(raised.value)
    assert "https://storage.googleapis.com/" in str(raised.value)


def test_damaged_data_file_is_detected_by_its_checksum(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"half")
    with pytest.raises(DatasetUnavailable, match="incomplete or another one"):
        load_keras_dataset("keras:cifar10", str(tmp_path))


def test_a_failed_download_gives_the_same_error(monkeypatch, tmp_path):
    def load_data():
        raise Exception("URL fetch failure on https://x: None -- no network")  # noqa: TRY002  # as Keras does

    fake = types.SimpleNamespace(datasets=types.SimpleNamespace(mnist=types.SimpleNamespace(load_data=load_data)))
    monkeypatch.setitem(sys.modules, "keras", fake)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(DatasetUnavailable) as raised:
        load_keras_dataset("keras:mnist", None)
    assert f"{tmp_path / 'datasets' / 'mnist.npz'}: URL fetch failure" in str(raised.value)


def published(monkeypatch, data, content):
    """Let `content` be what the checksum expects."""
    source = dataclasses.replace(SOURCES[data], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(SOURCES, data, source)


def test_mnist_is_read_from_its_folder(monkeypatch, tmp_path):
    x = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=np.array([3, 9], np.uint8))
    published(monkeypatch, "keras:mnist", (tmp_path / "mnist.npz").read_bytes())
    images, numbers = load_keras_dataset("keras:mnist", str(tmp_path))
    assert (images[..., 0] == x).all()
    assert numbers.tolist() == [3, 9]


def test_cifar10_is_read_from_its_folder(monkeypatch, tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    rows = np.zeros((1, 3072), np.uint8)
    rows[0, :1024] = 255
    with tarfile.open(path, "w:gz") as archive:
        for i in range(1, 6):
            content = pickle.dumps({b"data": rows, b"labels": [i]})
            member = tarfile.TarInfo(f"cifar-10-batches-py/data_batch_{i}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    published(monkeypatch, "keras:cifar10", path.read_bytes())
    images, numbers = load_keras_dataset("keras:cifar10", str(tmp_path))
    assert images.shape == (5, 32, 32, 3)
    assert images[0, 0, 0].tolist() == [255, 0, 0]
    assert numbers.tolist() == [1, 2, 3, 4, 5]
