"""Deterministic synthetic samples.

Equal (count, seed) give equal arrays on every machine, and sample i does not depend on the number of samples. Arrays
are created as float32 or int32: a thousand 299x299x3 images need their own 1.07 GB and 17 MB more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Pixels = NDArray[np.uint8]

# Bytes of 8-bit draws per block. A change of this value changes the data.
BLOCK_BYTES = 1 << 24
# A random stream per kind of array, so that labels do not correlate with the pixels of the same seed.
INPUTS, LABELS = 0, 1


def images(count: int, shape: tuple[int, ...], seed: int) -> Floats:
    """Integers 0..254 over 255, the 2017 suite's pixels, in [0, 1). Output: (count, *shape)."""
    values: Floats = _drawn(count, shape, seed, lambda rng, size: rng.integers(0, 255, size, dtype=np.uint8))
    values *= np.float32(1 / 255)
    return values


def pixels(count: int, shape: tuple[int, ...], seed: int) -> Pixels:
    """Integers 0..254, as in `images`. Output: (count, *shape)."""
    return _drawn(count, shape, seed, lambda rng, size: rng.integers(0, 255, size, dtype=np.uint8), np.uint8)


def booleans(count: int, shape: tuple[int, ...], seed: int) -> Floats:
    """Fair coin flips written as 0.0 and 1.0. Output: (count, *shape)."""
    return _drawn(count, shape, seed, lambda rng, size: rng.integers(0, 2, size, dtype=np.uint8))


def tokens(count: int, length: int, vocabulary: int, seed: int) -> Ints:
    """Token numbers in [0, vocabulary). Output: (count, length)."""
    return _generator(seed, INPUTS).integers(0, vocabulary, (count, length), dtype=np.int32)


def labels(count: int, classes: int, seed: int) -> Ints:
    """Class numbers in [0, classes). Output: (count,)."""
    return _generator(seed, LABELS).integers(0, classes, count, dtype=np.int32)


def one_hot(classes_of: NDArray[np.integer], classes: int) -> Floats:
    """Input: (count,) class numbers. Output: (count, classes)."""
    rows: Floats = np.zeros((len(classes_of), classes), np.float32)
    rows[np.arange(len(classes_of)), classes_of] = 1.0
    return rows


Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.uint8]]


def _drawn(count: int, shape: tuple[int, ...], seed: int, draw: Draw, dtype: type = np.float32) -> NDArray[Any]:
    block_rows = max(1, BLOCK_BYTES // math.prod(shape))
    out: NDArray[Any] = np.empty((count, *shape), dtype)
    for block, start in enumerate(range(0, count, block_rows)):
        block_array = out[start : start + block_rows]
        block_array[...] = draw(_generator(seed, INPUTS, block), block_array.shape)
    return out


def _generator(*entropy: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(entropy))
