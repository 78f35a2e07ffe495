"""Batches through `keras.utils.PyDataset`: threads, or a pool of processes.

On TensorFlow Keras turns it into a generator that tf.data prefetches from, also without workers.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import keras

from keras_matrix.models.inputs.pipelines.interface import Loader, PipelineWorkers, as_asked

KINDS = ("thread", "process")
depth = as_asked


class LoadedBatches(keras.utils.PyDataset):  # type: ignore[misc]
    """An endless PyDataset of batches."""

    def __init__(self, loader: Loader, timed: bool, **options: Any) -> None:
        super().__init__(**options)
        self._loader = loader
        self._timed = timed

    @property
    def num_batches(self) -> None:
        """None: Keras continues with the next number in the next epoch."""
        return

    def __getitem__(self, batch: int) -> Any:
        return self._loader.timed(batch) if self._timed else self._loader(batch)


def source(loader: Loader, batch_size: int, workers: PipelineWorkers, timed: bool) -> Any:
    """Return a `keras.utils.PyDataset` of batches."""
    in_processes = workers.count > 0 and workers.kind == "process"
    if in_processes:
        # Keras takes the default context. A forked process would inherit locks that the backend's threads hold.
        multiprocessing.set_start_method("spawn", force=True)
    # Keras submits a batch to its workers before it puts it into the queue, so that one more is in the making.
    queue_size = max(1, workers.asked - 1)
    return LoadedBatches(
        loader, timed, workers=workers.count, use_multiprocessing=in_processes, max_queue_size=queue_size
    )
