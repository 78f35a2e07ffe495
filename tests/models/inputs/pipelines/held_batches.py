"""Run in a process: prints the batches that a source holds while nobody reads, and the depth that is stated.

Usage: KERAS_BACKEND=... python held_batches.py PIPELINE KIND WORKERS PREFETCH FILE

Each call of the loader adds a byte to FILE when it begins.
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil

QUIET_S, LONGEST_S = 3.0, 60.0


class Counted:
    """A loader that counts its calls, also those of other processes."""

    dtype, sample_shape = "uint8", (4, 4, 3)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        with self._path.open("ab", buffering=0) as counted:
            counted.write(b".")
        return np.zeros((2, *self.sample_shape), np.uint8), np.zeros(2, np.int32)


def main(pipeline: str, kind: str, workers: str, prefetch: str, file: str) -> None:
    """Read a batch, wait until no more are made, and print how many were."""
    from keras_matrix.models.inputs.pipelines.interface import PipelineWorkers

    path = Path(file)
    asked = PipelineWorkers(int(workers), kind, int(prefetch))
    module = import_module(f"keras_matrix.models.inputs.pipelines.{pipeline}")
    source = module.source(Counted(path), 2, asked, False)
    if pipeline == "py_dataset":
        from keras.src.trainers.data_adapters import get_data_adapter

        adapter = get_data_adapter(source)
        adapter.on_epoch_begin()
        source = adapter.get_numpy_iterator()
    batches = iter(source)
    next(batches)
    made, since_s = 0, time.monotonic()
    while time.monotonic() < since_s + (QUIET_S if made else LONGEST_S):
        time.sleep(0.1)
        if path.stat().st_size != made:
            made, since_s = path.stat().st_size, time.monotonic()
    print(made - 1, module.depth(asked), flush=True)  # one was read
    for worker in psutil.Process().children(recursive=True):
        worker.kill()
    os._exit(0)  # the source does not end


if __name__ == "__main__":
    main(*sys.argv[1:])
