"""The types of stored images: a sample, the interface of a source, and the error of invalid or damaged data.

The order in which samples are read: which samples the n-th batch of an endless stream contains.

It is a function of the batch's number alone, so that every backend, thread and worker process agrees without any state.

    none      0, 1, 2, ...
    global    a permutation of all samples in each pass
    window    a permutation of short runs of successive samples. A batch is made of about `RUNS_PER_BATCH` runs, each
              one read of a record file. With a global permutation, record files need as many reads as a folder.

The last batch of a pass is filled from the beginning of the same pass, so that every batch has the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]
SHUFFLES = ("none", "window", "global")
RUNS_PER_BATCH = 4


class InputDataError(ValueError):
    """Data on disk is missing, damaged or not what was asked for; the message names the file and what to do.

    Names that are not valid UTF-8 are written with escapes, so that the message can be printed anywhere.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


@dataclass(frozen=True, slots=True)
class Sample:
    """One encoded image and its label, an index into the classes of its source."""

    data: bytes
    label: int


class Source(Protocol):
    """A stored data set with random access.

    It can be pickled, opens its files in the process and thread that reads, and may be used by several threads.
    """

    @property
    def kind(self) -> str:
        """folder, tfrecord or array_record."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about data that is unusual but usable, such as a class without images."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples with these indices, in this order. Raises `InputDataError` if one cannot be read.

        Successive indices of a record file are one read of that file; a folder opens a file for each.
        """

    def name(self, index: int) -> str:
        """Return the name of a sample for messages, such as `cat/1.jpg` or `images-00003.tfrecord record 17`."""

    def files(self) -> list[Path]:
        """Return every file of these samples, without duplicates."""

    def sizes(self) -> Integers:
        """Return the stored bytes of each sample; for ArrayRecord the mean of its file."""

    def order(self, shuffle: str, seed: int, batch_size: int) -> Order:
        """Return the order of reading with this shuffle: none, window or global.

        A folder has no long reads to gain from a window, so that its window is global.
        """


@dataclass(frozen=True, slots=True)
class Order:
    """The order of `count` samples in batches of `batch_size`. Raises ValueError for values that make no order."""

    count: int
    batch_size: int
    shuffle: str
    seed: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.batch_size < 1:
            raise ValueError(
                f"an order needs at least one sample and one sample per batch, "
                f"got count={self.count}, batch_size={self.batch_size}"
            )
        if self.shuffle not in SHUFFLES:
            raise ValueError(f"shuffle: must be one of {', '.join(SHUFFLES)}, got {self.shuffle!r}")
        if self.seed < 0:
            raise ValueError(f"seed: must be at least 0, got {self.seed}")

    @property
    def batches_per_pass(self) -> int:
        """The number of batches in which every sample occurs at least once."""
        return -(-self.count // self.batch_size)

    def indices(self, batch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the samples of a batch: (batch_size,) int64, each from 0 to count - 1. Batches count from 0."""
        epoch, batch_in_pass = divmod(batch, self.batches_per_pass)
        places = (batch_in_pass * self.batch_size + np.arange(self.batch_size, dtype=np.int64)) % self.count
        if self.shuffle == "none":
            return places
        run = 1 if self.shuffle == "global" else max(1, self.batch_size // RUNS_PER_BATCH)
        return permuted_runs(self.count, run, self.seed, epoch)[places]


@lru_cache(2)
def permuted_runs(count: int, run: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a permutation of 0 ... count - 1 that keeps runs of successive numbers together: (count,) int64.

    The first run is shorter by a random number, so that runs have other ends in each epoch.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    if run == 1:
        return _locked(random.permutation(count).astype(np.int64))
    first_length = int(random.integers(1, run + 1))
    starts = np.concatenate([[0], np.arange(min(first_length, count), count, run)]).astype(np.int64)
    lengths = np.diff(np.append(starts, count))
    shuffled_indices = random.permutation(len(starts))
    starts, lengths = starts[shuffled_indices], lengths[shuffled_indices]
    samples_before = np.cumsum(lengths) - lengths
    return _locked(np.repeat(starts - samples_before, lengths) + np.arange(count, dtype=np.int64))


def _locked(values: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Forbid changes to an array that is shared through the cache."""
    values.setflags(write=False)
    return values
