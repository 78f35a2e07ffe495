"""What a pipeline is asked for: how many workers of which kind, and how many batches ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

# More batches than any run reads, and few enough for a 32-bit index.
ENDLESS = 2**31 - 1


class Loader(Protocol):
    """Loads the batch of a number; see `batch_loader.BatchLoader`."""

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """The shape of one sample of x."""

    @property
    def dtype(self) -> str:
        """The dtype of x."""

    def __call__(self, batch: int) -> tuple[Any, Any]:
        """Return x and y."""

    def timed(self, batch: int) -> tuple[Any, Any, Any]:
        """Return x, y and the times of the stages."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a pipeline.

    `count` 0: the training thread prepares each batch when it needs it, nothing is prepared ahead. `prefetch` batches
    may be ready besides those that are in the making.
    """

    count: int
    kind: str
    prefetch: int

    @property
    def depth(self) -> int:
        """The most batches that are ready or in the making."""
        return self.count + self.prefetch if self.count else 0

    @property
    def per_worker(self) -> int:
        """The batches that each worker may have ready or in the making, where a queue belongs to each worker."""
        return -(-self.depth // self.count) if self.count else 0


Make = Callable[[Loader, int, Workers, bool], Any]
"""Makes a source for `fit` from a loader, the batch size, the workers, and whether batches have stages."""
