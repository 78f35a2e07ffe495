"""Run in a process: reads a batch of a backend's pipeline; prints `met` if all its threads prepared batches at once.

Usage: python meet_workers.py BACKEND WORKERS
"""

import os
import sys
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np

PATIENCE_S = 20.0


class Meeting:
    """A loader whose batch is ready when as many other batches are in the making as there are workers."""

    dtype, sample_shape = "uint8", (4, 4, 3)

    def __init__(self, workers: int) -> None:
        self._all = threading.Barrier(workers)

    def __call__(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        self._all.wait(PATIENCE_S)
        return np.zeros((2, *self.sample_shape), np.uint8), np.zeros(2, np.int32)


if __name__ == "__main__":
    backend, count = sys.argv[1], int(sys.argv[2])
    workers = SimpleNamespace(count=count, prefetch=2, per_worker=2, kind="thread", asked=count + 2)
    source = import_module(f"keras_matrix.models.inputs.pipelines.{backend}").source(Meeting(count), 2, workers, False)
    next(iter(source))
    print("met", flush=True)
    os._exit(0)  # the source does not end
