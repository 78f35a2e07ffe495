"""The samples of an image classifier, from the source that the request names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_matrix.models.inputs import synthetic
from keras_matrix.models.workload import Request, Samples


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
    models.inputs.keras_datasets.DatasetUnavailable if the data is missing.
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
        from keras_matrix.models.inputs.keras_datasets import load_keras_dataset

        pixels, numbers = load_keras_dataset(request.data, request.dataset_dir)
    # Each image is resized once: a matrix product may round equal rows differently, depending on their position.
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(pixels))[:count]
    again = slice(None) if len(order) == count else np.resize(np.arange(len(order)), count)
    return resized(pixels[order], images)[again], numbers[order][again]


def load_digits() -> tuple[Any, Any]:
    """Return handwritten digits without a network: (1797, 8, 8, 1) uint8 in 0..255, (1797,) class numbers.

    Raises DatasetUnavailable without scikit-learn. Source: E. Alpaydin and C. Kaynak, "Optical Recognition of
    Handwritten Digits", UCI Machine Learning Repository, 1998: 8x8 pixels in 17 grey levels.
    """
    from keras_matrix.models.inputs.keras_datasets import DatasetUnavailable

    try:
        from sklearn import datasets
    except ImportError as problem:
        raise DatasetUnavailable(
            "data 'digits' requires scikit-learn, which is not installed; install scikit-learn>=1.7, or use data: "
            "synthetic"
        ) from problem
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
    at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, source - 1)
    share = (at - low).astype(np.float32)
    weights = np.zeros((target, source), np.float32)
    np.add.at(weights, (np.arange(target), low), 1 - share)
    np.add.at(weights, (np.arange(target), high), share)
    return weights
