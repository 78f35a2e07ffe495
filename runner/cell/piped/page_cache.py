"""The page cache of a pipeline's files: evicted before each epoch of a cold cell, filled before those of a warm one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keras_matrix.records.host.system import free_memory_bytes


@dataclass(slots=True)
class PageCache:
    """The page cache of these files, and what was done to it; `evicted` is the fewest files of any epoch."""

    files: Sequence[Path]
    cold: bool = False
    evicted: int | None = None
    resident_shares: list[float | None] = field(default_factory=list)
    fits: bool | None = None

    def prepare(self) -> None:
        """Evict the files before an epoch of a cold cell; in a warm cell read them, so that it reads no storage.

        A warm cell reads again what another one, measured in turn with it, has evicted. Files that do not fit into
        half of the available memory would evict each other: they are left as they are.
        """
        if not self.files:
            return
        from keras_matrix.models.inputs.stored.page_cache import evict, resident_share, warm

        if self.cold:
            count = evict(self.files)
            self.evicted = count if self.evicted is None else min(count, self.evicted)
        elif self._fits():
            warm(self.files)
        if self.cold or not self.resident_shares:
            self.resident_shares.append(resident_share(self.files))

    def _fits(self) -> bool:
        if self.fits is None:
            self.fits = _size_bytes(self.files) <= (free_memory_bytes() or 0) // 2
        return self.fits

    @property
    def resident_share(self) -> float | None:
        """The share of the files in the cache when epochs began, the highest one; None if one cannot be read."""
        known = [share for share in self.resident_shares if share is not None]
        return max(known, default=None) if len(known) == len(self.resident_shares) else None

    @property
    def cold_meaning(self) -> str | None:
        """What "cold" means for these epochs; None in a warm cell."""
        if not self.cold or self.evicted is None:
            return None
        from keras_matrix.models.inputs.stored.page_cache import cold_meaning

        return cold_meaning(self.files, self.evicted, self.resident_share)


def _size_bytes(files: Sequence[Path]) -> int:
    total = 0
    for path in files:
        with contextlib.suppress(OSError):  # it vanished: reading it is the pipeline's error
            total += path.stat().st_size
    return total
