"""The host's memory without a backend: NumPy's loops, each thread on its own part of the arrays.

NumPy has no fused triad. It is computed block by block in two passes, and a block stays in the core's own cache between
them, so that what crosses the memory is what one pass would move.

A module of its own: peaks are timed by one module per backend, and this one has none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.runner.cell import peaks
from keras_matrix.runner.cell.peaks import SCALAR, NotTimeable, TimedOperation

# Three blocks of 128 KiB stay within a second-level cache of 512 KiB, which today's cores have.
BLOCK = 16_384

Floats = npt.NDArray[np.float64]


class Bench(peaks.Bench):
    """Timed with NumPy, on every CPU the process may use."""

    def __init__(self) -> None:
        self._threads = len(PLATFORM.usable_cpus())
        self._pool = ThreadPoolExecutor(self._threads)

    def gemm(self, size: int, precision: str) -> TimedOperation:
        raise NotTimeable("matrix products are timed with the backends")

    def copy(self, elements: int) -> TimedOperation:
        return self._over_parts(_copy, elements)

    def triad(self, elements: int) -> TimedOperation:
        return self._over_parts(_triad, elements)

    def _over_parts(self, kernel: Callable[[Floats, Floats, Floats], None], elements: int) -> TimedOperation:
        share = -(-elements // self._threads)
        # Each thread allocates its own part: on NUMA machines a page is on the node that first writes it.
        arrays_by_thread = list(
            self._pool.map(_arrays, [min(share, elements - k * share) for k in range(self._threads)])
        )

        def call() -> None:
            for _ in self._pool.map(lambda thread_arrays: kernel(*thread_arrays), arrays_by_thread):
                pass

        return TimedOperation(call)


def _arrays(elements: int) -> tuple[Floats, Floats, Floats]:
    return np.full(elements, 1.0), np.full(elements, 2.0), np.full(elements, 0.0)


def _copy(a: Floats, b: Floats, c: Floats) -> None:
    np.copyto(c, a)


def _triad(a: Floats, b: Floats, c: Floats) -> None:
    for start in range(0, len(a), BLOCK):
        block = slice(start, start + BLOCK)
        np.multiply(c[block], SCALAR, out=a[block])
        np.add(a[block], b[block], out=a[block])
