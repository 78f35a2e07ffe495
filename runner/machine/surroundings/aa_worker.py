"""One arm of the A/A measurement: a process that computes on request and reports how long it took, without a backend.

A step gives every thread the same matrix products and waits for all of them, like a parallel operation of a backend, so
that a process on one CPU delays the step. The library's own threads are off: they would spin between two turns. It
prints `ready`, and then for each number of steps that it reads the seconds they took and its CPU seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SIDE = 256
PRODUCTS_PER_STEP = 8


def main(threads: int) -> None:
    """Answer until the input ends."""
    step = _step(threads)
    step()
    print("ready", flush=True)
    for line in sys.stdin:
        begun_s, cpu_begun_s = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - begun_s, time.process_time() - cpu_begun_s, flush=True)


def _step(threads: int) -> Callable[[], None]:
    import numpy as np

    generator = np.random.default_rng(0)
    sides = [generator.standard_normal((3, SIDE, SIDE), dtype=np.float32) for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def work(arrays: np.ndarray) -> None:
        for _ in range(PRODUCTS_PER_STEP):
            np.matmul(arrays[0], arrays[1], out=arrays[2])

    def step() -> None:
        for _ in pool.map(work, sides):
            pass

    return step


if __name__ == "__main__":
    main(int(sys.argv[1]))
