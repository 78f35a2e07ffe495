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
class PipelineWorkers:
    """The workers of a pipeline.

    `count` 0: the training thread prepares each batch when it needs it, nothing is prepared ahead. `prefetch` batches
    may be ready besides those that are in the making.
    """

    count: int
    kind: str
    prefetch: int

    @property
    def asked(self) -> int:
        """The batches that may be ready or in the making, as asked for; a pipeline may need more."""
        return self.count + self.prefetch if self.count else 0

    @property
    def per_worker(self) -> int:
        """Those of each worker, where a queue belongs to each worker."""
        return -(-self.asked // self.count) if self.count else 0


Make = Callable[[Loader, int, PipelineWorkers, bool], Any]
"""Makes a source for `fit` from a loader, the batch size, the workers, and whether batches have stages."""


def as_asked(workers: PipelineWorkers) -> int:
    """Return the most batches that a source with one queue for all workers has ready or in the making."""
    return workers.asked
