"""Searches the largest batch that fits a device's memory: doubling, then bisection, with a process per try. Pure.

The result is exact to an eighth of the largest power of two that fits: allocators round, and batch sizes are rarely
chosen more finely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keras_matrix.records.schema import MEASURED, Status

MOST = 1_000_000  # as the grammar of a matrix allows
PARTS = 8
TOO_LARGE = frozenset({Status.OOM_DEVICE, Status.OOM_HOST})


@dataclass(frozen=True, slots=True)
class Try:
    """A process at a batch size with the result in its record; bytes are None if they were not measured."""

    batch_size: int
    status: Status
    reason: str | None = None
    peak_memory_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Return whether the process trained to its end."""
        return self.status in MEASURED or self.status is Status.DIVERGED


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """The result of a search. `stopped` is a try that ended for a reason other than memory; it invalidates the rest."""

    largest: Try | None
    smallest_too_large: Try | None
    tries: int
    stopped: Try | None = None


def search(attempt: Callable[[int], Try], most: int = MOST) -> BatchSearch:
    """Return the largest batch size up to `most` that fits, using `attempt` to try a size."""
    fits: Try | None = None
    too_large: Try | None = None
    tries = 0
    while (size := _next_size(fits, too_large, most)) is not None:
        tried, tries = attempt(size), tries + 1
        if tried.fits:
            fits = tried
        elif tried.status in TOO_LARGE:
            too_large = tried
        else:
            return BatchSearch(fits, too_large, tries, tried)
    return BatchSearch(fits, too_large, tries)


def _next_size(fits: Try | None, too_large: Try | None, most: int) -> int | None:
    """Return the batch size to try next, or None when the result is known."""
    if fits is None:
        return None if too_large else 1
    low = fits.batch_size
    if too_large is None:
        return min(2 * low, most) if low < most else None
    step = max(1, (1 << low.bit_length() - 1) // PARTS)
    gap = too_large.batch_size - low
    return low + gap // step // 2 * step if gap >= 2 * step else None
