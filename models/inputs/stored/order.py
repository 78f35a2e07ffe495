"""The order in which samples are read: which samples the n-th batch of an endless stream contains.

It is a function of the batch's number alone, so that every backend, thread and worker process agrees without any state.

    none      0, 1, 2, ...
    global    a permutation of all samples in each pass
    window    a permutation of short runs of successive samples. A batch is made of about `RUNS_PER_BATCH` runs, each
              one read of a record file. With a global permutation, record files need as many reads as a folder.

The last batch of a pass is filled from the beginning of the same pass, so that every batch has the same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

SHUFFLES = ("none", "window", "global")
RUNS_PER_BATCH = 4


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
        epoch, within = divmod(batch, self.batches_per_pass)
        places = (within * self.batch_size + np.arange(self.batch_size, dtype=np.int64)) % self.count
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
    first = int(random.integers(1, run + 1))
    starts = np.concatenate([[0], np.arange(min(first, count), count, run)]).astype(np.int64)
    lengths = np.diff(np.append(starts, count))
    drawn = random.permutation(len(starts))
    starts, lengths = starts[drawn], lengths[drawn]
    before = np.cumsum(lengths) - lengths
    return _locked(np.repeat(starts - before, lengths) + np.arange(count, dtype=np.int64))


def _locked(values: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Forbid changes to an array that is shared through the cache."""
    values.setflags(write=False)
    return values
