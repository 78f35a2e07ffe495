"""The samples of an image classifier, from the requested source, such as the data sets of keras.datasets.

With a dataset folder the file must be in it with the right checksum, and no network is used. Without one Keras's own
loading code uses Keras's own folder, and downloads a missing file if the network answers within a time limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import socket
import sys
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from keras_matrix.models.inputs import synthetic
from keras_matrix.models.workload import Request, Samples

NETWORK_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Images:
    """`count` square images, height x width x channels, and one-hot labels."""

    size: int
    channels: int
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return (self.size, self.size, self.channels)


def image_samples(request: Request, images: Images, shape: tuple[int, ...] | None = None) -> Samples:
    """The `samples` of a `Built`: x (count, *shape) float32 in [0, 1], y (count, classes) one-hot float32.

    `shape` is the model's input shape (flat, or as a sequence), by default that of the image. `samples` raises
    models.inputs.images.DatasetUnavailable if the data is missing.
    """

    def samples(count: int, seed: int) -> tuple[Any, Any]:
        x, numbers = _loaded(request, images, count, seed)
        return x.reshape(count, *(shape or images.shape)), synthetic.one_hot(numbers, images.classes)

    return samples


def _loaded(request: Request, images: Images, count: int, seed: int) -> tuple[Any, Any]:
    if request.data == "synthetic":
        return synthetic.images(count, images.shape, seed), synthetic.labels(count, images.classes, seed)
    if request.data == "digits":
        pixels, numbers = load_digits()
    else:
        pixels, numbers = load_keras_dataset(request.data, request.dataset_dir)
    # Each image is resized once: a matrix product may round equal rows differently, depending on their position.
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(pixels))[:count]
    repeated_indices = slice(None) if len(order) == count else np.resize(np.arange(len(order)), count)
    return resized(pixels[order], images)[repeated_indices], numbers[order][repeated_indices]


def load_digits() -> tuple[Any, Any]:
    """Return handwritten digits without a network: (1797, 8, 8, 1) uint8 in 0..255, (1797,) class numbers.

    Raises DatasetUnavailable without scikit-learn. Source: E. Alpaydin and C. Kaynak, "Optical Recognition of
    Handwritten Digits", UCI Machine Learning Repository, 1998: 8x8 pixels in 17 grey levels.
    """

    try:
        from sklearn import datasets
    except ImportError as error:
        raise DatasetUnavailable(
            "data 'digits' requires scikit-learn, which is not installed; install scikit-learn>=1.7, or use data: "
            "synthetic"
        ) from error
    bunch = datasets.load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return grey[..., None], bunch.target.astype(np.int32)


def resized(pixels: Any, images: Images) -> Any:
    """Bilinear, half-pixel centres, clamped edges. Input: (count, h, w, c) uint8. Output: (count, size, size,
    channels).

    Grey becomes colour by repetition, colour becomes grey by the mean of its channels. Output is float32 in [0, 1].
    """
    count, height, width, channels = pixels.shape
    x = pixels.astype(np.float32) / np.float32(255)
    if (height, width) != (images.size, images.size):
        rows, columns = _weights(height, images.size), _weights(width, images.size)
        x = np.einsum("Hh,nhwc,Ww->nHWc", rows, x, columns, optimize=True)
    if channels != images.channels:
        x = x.mean(axis=-1, keepdims=True)
    return np.ascontiguousarray(np.broadcast_to(x, (count, *images.shape)), dtype=np.float32)


def _weights(source: int, target: int) -> Any:
    positions = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    low = np.floor(positions).astype(int)
    high = np.minimum(low + 1, source - 1)
    share = (positions - low).astype(np.float32)
    weights = np.zeros((target, source), np.float32)
    np.add.at(weights, (np.arange(target), low), 1 - share)
    np.add.at(weights, (np.arange(target), high), share)
    return weights


class DatasetUnavailable(Exception):  # a state of the data
    """The requested data cannot be read. The message says which file is expected where, and what to do."""


def read_mnist(path: Path) -> tuple[Any, Any]:
    """The training part of mnist.npz: (60000, 28, 28) and (60000,) uint8."""
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["x_train"], arrays["y_train"]


def read_cifar10(path: Path) -> tuple[Any, Any]:
    """The training part of cifar-10-python.tar.gz: (50000, 32, 32, 3) and (50000,) uint8."""
    with tarfile.open(path) as archive:
        batches = [_unpickled(archive.extractfile(f"cifar-10-batches-py/data_batch_{i}")) for i in range(1, 6)]
    x = np.concatenate([batch[b"data"] for batch in batches])
    y = np.concatenate([np.asarray(batch[b"labels"], np.uint8) for batch in batches])
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y


def _unpickled(file: IO[bytes] | None) -> dict[bytes, Any]:
    """Only for bytes with a verified checksum: a pickle can run code."""
    if file is None:
        raise ValueError("a batch of the archive is not a file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file names numpy.core, which numpy 2 has renamed
        return pickle.load(file, encoding="bytes")  # type: ignore[no-any-return]  # noqa: S301 - its checksum was verified


@dataclass(frozen=True, slots=True)
class KerasDataset:
    """One data set: its module in keras.datasets, the published file, and Keras's local name of that file."""

    module: str
    url: str
    sha256: str
    kept_as: str
    read: Callable[[Path], tuple[Any, Any]]

    @property
    def file(self) -> str:
        """The published file's name."""
        return self.url.rpartition("/")[2]


SOURCES = {
    "keras:mnist": KerasDataset(
        module="mnist",
        url="https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        sha256="731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
        kept_as="mnist.npz",
        read=read_mnist,
    ),
    "keras:cifar10": KerasDataset(
        module="cifar10",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        kept_as="cifar-10-batches-py-target_archive",
        read=read_cifar10,
    ),
}


def load_keras_dataset(data: str, dataset_dir: str | None) -> tuple[Any, Any]:
    """The training part: (count, height, width, channels) uint8, (count,) int32. Raises DatasetUnavailable."""
    source = SOURCES[data]
    x, y = _by_keras(source) if dataset_dir is None else _from_folder(source, Path(dataset_dir))
    return x[..., None] if x.ndim == 3 else x, np.asarray(y, np.int32).reshape(-1)


def _from_folder(source: KerasDataset, folder: Path) -> tuple[Any, Any]:
    path = folder / source.file
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatasetUnavailable(_advice(source, path, error.strerror or str(error))) from None
    if sha256 != source.sha256:
        raise DatasetUnavailable(_advice(source, path, f"the file is incomplete or another one (sha256 {sha256})"))
    return source.read(path)


def _by_keras(source: KerasDataset) -> tuple[Any, Any]:
    import keras

    download_path = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets" / source.kept_as
    previous_timeout_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            (x, y), _ = getattr(keras.datasets, source.module).load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        why = " ".join(str(error).split()) or type(error).__name__
        raise DatasetUnavailable(_advice(source, download_path, why)) from error
    finally:
        socket.setdefaulttimeout(previous_timeout_s)
    return x, y


def _advice(source: KerasDataset, path: Path, why: str) -> str:
    return (
        f"keras.datasets.{source.module}: cannot use {path}: {why}. Get {source.url} where there is a network and "
        f"put it there, or put {source.file} in a folder and name that with --datasets; or use data: synthetic"
    )
