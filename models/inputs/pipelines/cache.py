"""Decoded images of the first pass kept in memory, in the process that prepares batches.

Needs size * size * 3 bytes per sample: 7.5 GB for 50,000 images of 224 pixels. Threads share one cache. Worker
processes each fill their own, so that all of them together need up to that many bytes for each worker, and batches
are found complete only after several passes.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np

from keras_matrix.models.inputs.pipelines.batch_loader import BatchLoader, Timed
from keras_matrix.records.host.system import usable_memory_bytes


class CachedLoader:
    """A `BatchLoader` that decodes each sample once per process. Same results, same interface; can be pickled."""

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._pixels: Any = None
        self._labels: Any = None
        self._present: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedLoader, (self._loader,)

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """The shape of one sample of x."""
        return self._loader.sample_shape

    @property
    def dtype(self) -> str:
        """The dtype of x."""
        return self._loader.dtype

    def __call__(self, batch: int) -> tuple[Any, Any]:
        """Return the batch of this number."""
        indices = self._loader.order.indices(int(batch))
        self._allocate()
        if not self._present[indices].all():
            x, y = self._loader(batch)
            self._keep(indices, x, y)
            return x, y
        return self._pixels[indices], self._labels[indices]

    def timed(self, batch: int) -> Timed:
        """Return the batch and its stages; taking it from memory counts as preparing."""
        indices = self._loader.order.indices(int(batch))
        self._allocate()
        if not self._present[indices].all():
            timed = self._loader.timed(batch)
            self._keep(indices, *timed[:2])
            return timed
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        x, y = self._pixels[indices], self._labels[indices]
        wall_s, cpu_s = time.perf_counter() - begun_s, time.thread_time() - begun_cpu_s
        return x, y, np.array([0.0, 0.0, wall_s, cpu_s, 0.0, batch], np.float64)

    def _keep(self, indices: Any, x: Any, y: Any) -> None:
        self._pixels[indices], self._labels[indices] = x, y
        self._present[indices] = True  # last: another thread may read in between

    def _allocate(self) -> None:
        """Reserve the arrays; the system gives a page when it is first written."""
        with self._lock:
            if self._present is None:
                count = self._loader.order.count
                self._pixels = np.empty((count, *self.sample_shape), self.dtype)
                self._labels = np.empty(count, np.int32)
                self._present = np.zeros(count, bool)


def cached(loader: BatchLoader, copies: int) -> CachedLoader:
    """Return the loader with a cache. Raises ValueError if `copies` of it need more than half of the memory."""
    needed = copies * loader.order.count * math.prod(loader.sample_shape) * np.dtype(loader.dtype).itemsize
    usable = usable_memory_bytes()
    if usable is not None and needed > usable / 2:
        where = f" in {copies} worker processes" if copies > 1 else ""
        raise ValueError(
            f"cache: ram needs {needed / 1e9:.1f} GB{where} for {loader.order.count} images of "
            f"{loader.sample_shape[0]} pixels, more than half of this machine's {usable / 1e9:.1f} GB; set a smaller "
            "dataset_size or image_size, preprocess: device, or cache: none"
        )
    return CachedLoader(loader)
