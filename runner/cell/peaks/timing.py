"""From calls to rates: sizes, repetitions and the rates that count.

STREAM's rules apply: float64 arrays, each at least four times the last-level caches, best of many calls; bytes are
counted from the program's view, 16 an element for copy and 24 for triad, without further transfers of the cache.
Source: J. D. McCalpin, "Memory bandwidth and machine balance in current high performance computers", IEEE TCCA
Newsletter, December 1995, and www.cs.virginia.edu/stream/ref.html.

On an accelerator the clock is read around stretches of calls, over arrays of its own size (`calls_per_stretch`,
`plan_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from keras_matrix.records.host.platform import PLATFORM
from keras_matrix.records.host.system import free_memory_bytes
from keras_matrix.records.instruments.peaks import Gemm, PeakOrder, Stream, Timed
from keras_matrix.runner.cell.clock import Clock, monotonic
from keras_matrix.runner.cell.peaks import (
    SCALAR,
    ArrayPlan,
    Bench,
    DeviceMemory,
    NotTimeable,
    TimedOperation,
    calls_per_stretch,
    plan_arrays,
)

# The first is so small that on a shared machine some call runs undisturbed: 3 ms at 100 GFLOP/s, a scheduler's slice.
SIZES = (512, 1024, 2048, 4096, 8192, 16_384)
# A product that takes this long is large enough: the overhead of a call is negligible.
ENOUGH_S = 0.03
MOST_CALLS = 100
PATIENCE = 10  # windows after which even the least number of calls is abandoned
FLOAT64_BYTES = 8
CACHES_PER_ARRAY = 4
LEAST_ARRAY_BYTES = 64 << 20
MOST_ARRAY_BYTES = 1 << 30
MEMORY_SHARE = 1 / 16
BYTES_PER_ELEMENT = {"copy": 16, "triad": 24}
# Three blocks of 128 KiB stay within a second-level cache of 512 KiB, which today's cores have.
BLOCK = 16_384
Floats = npt.NDArray[np.float64]


def gemms(bench: Bench, order: PeakOrder, precision: str, clock: Clock = monotonic) -> Iterator[Gemm]:
    """Yield the product's rates at each size. Raises `NotTimeable`, or any error of the backend."""
    settings = order.settings
    for size in order.sizes or SIZES:
        flops = 2 * size**3
        timed_rates = rates(bench.gemm(size, precision), flops, order, clock)
        thread_count = len(PLATFORM.usable_cpus())
        yield Gemm(settings.backend, settings.device, precision, thread_count, size, timed_rates)
        if not order.sizes and flops / timed_rates.best >= ENOUGH_S:
            return


def stream(bench: Bench, order: PeakOrder, kernel: str, clock: Clock = monotonic) -> Stream:
    """Return the rates of a kernel. Raises `NotTimeable`, or any error of the backend."""
    array_bytes = order.array_bytes or default_array_bytes()
    elements = array_bytes // FLOAT64_BYTES
    call = {"copy": bench.copy, "triad": bench.triad}[kernel](elements)
    timed_rates = rates(call, BYTES_PER_ELEMENT[kernel] * elements, order, clock)
    settings = order.settings
    thread_count = len(PLATFORM.usable_cpus())
    return Stream(settings.backend, settings.device, kernel, thread_count, array_bytes, timed_rates)


def rates(call: TimedOperation, amount: int, order: PeakOrder, clock: Clock = monotonic) -> Timed:
    """Return `amount` per second for single calls, on an accelerator for stretches, after a discarded call."""

    def time_stretch(call_count: int) -> float:
        start_s = clock()
        for _ in range(call_count):
            call.start()
        call.finish()
        return clock() - start_s

    time_stretch(1)
    call_count = 1 if order.settings.device == "cpu" else calls_per_stretch(time_stretch)
    call_rates: list[float] = []
    begun_s = clock()
    while _continues(len(call_rates), clock() - begun_s, order):
        call_rates.append(call_count * amount / time_stretch(call_count))
    return Timed(call_rates, 1)


def array_plan(bench: Bench, order: PeakOrder) -> ArrayPlan | None:
    """Return the size of STREAM's arrays on an accelerator that has not yet been used; None if the order decides it."""
    if order.array_bytes or order.settings.device == "cpu":
        return None
    memory = bench.memory()
    free_sizes = [free_bytes for free_bytes in (memory.free_bytes, order.device_free_bytes) if free_bytes is not None]
    return plan_arrays(DeviceMemory(min(free_sizes, default=None), memory.l2_bytes))


def _continues(call_count: int, spent_s: float, order: PeakOrder) -> bool:
    if call_count == 0:
        return True
    if call_count >= MOST_CALLS or spent_s >= PATIENCE * order.window_s:
        return False
    return call_count < order.least_calls or spent_s < order.window_s


def default_array_bytes() -> int:
    """Return the size that STREAM requires, within the limits of the memory."""
    array_bytes = max(LEAST_ARRAY_BYTES, CACHES_PER_ARRAY * (cache_bytes() or 0))
    free_bytes = free_memory_bytes()
    allowed_bytes = MOST_ARRAY_BYTES if free_bytes is None else int(free_bytes * MEMORY_SHARE)
    return min(array_bytes, allowed_bytes, MOST_ARRAY_BYTES) // FLOAT64_BYTES * FLOAT64_BYTES


def cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the total size of all CPUs' last-level caches; None if the kernel does not report it."""
    sizes_by_level: dict[int, dict[str, int]] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, kind, cpus_text, size_text = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "shared_cpu_list", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size_text.endswith("K"):
            sizes_by_level.setdefault(int(level), {})[cpus_text] = int(size_text[:-1]) << 10
    return sum(sizes_by_level[max(sizes_by_level)].values()) if sizes_by_level else None


class HostBench(Bench):
    """The host's memory without a backend: NumPy's loops on every CPU the process may use, each on its own part.

    NumPy has no fused triad. It is computed block by block in two passes, and a block stays in the core's own cache
    between them, so that what crosses the memory is what one pass would move.
    """

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
