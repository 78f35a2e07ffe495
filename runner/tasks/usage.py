"""Memory in use, sampled: mean, standard deviation and the most, without keeping the samples."""

from __future__ import annotations

import math

from records.task import Usage


class Samples:
    """Adds up samples in bytes (Welford, "Note on a method for calculating corrected sums of squares", 1962)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = 0.0
        self.most = 0

    def add(self, value: int) -> None:
        """Take one sample."""
        self._count += 1
        step = value - self._mean
        self._mean += step / self._count
        self._squares += step * (value - self._mean)
        self.most = max(self.most, value)

    def usage(self) -> Usage | None:
        """Return what the samples show; None without one."""
        if not self._count:
            return None
        return Usage(self._mean, math.sqrt(self._squares / self._count), self.most, self._count)
