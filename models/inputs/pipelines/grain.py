"""Batches through Grain, which `fit` accepts on every backend: threads that share the interpreter, or processes.

A module of its own: pipelines are loaded by name, also on the backends that have none of their own.
"""

from __future__ import annotations

from typing import Any

from keras_matrix.models.inputs.pipelines.interface import ENDLESS, Loader, PipelineWorkers, as_asked

KINDS = ("thread", "process")
# Besides a queue in the process and one of the same size in the thread that reads from it, Grain holds a batch in each.
QUEUES = 2


def source(loader: Loader, batch_size: int, workers: PipelineWorkers, timed: bool) -> Any:
    """Return a `grain.IterDataset` of batches."""
    import grain

    batches = grain.MapDataset.range(ENDLESS).map(loader.timed if timed else loader.__call__)
    if workers.count == 0 or workers.kind == "thread":
        return batches.to_iter_dataset(grain.ReadOptions(workers.count, workers.asked))
    _parse_flags()
    # Each process prepares in its only thread; Grain's own default is 16 more.
    iter_dataset = batches.to_iter_dataset(grain.ReadOptions(0, 0))
    return iter_dataset.mp_prefetch(
        grain.MultiprocessingOptions(workers.count, per_worker_buffer_size=_queue_size(workers))
    )


def depth(workers: PipelineWorkers) -> int:
    """Return the most batches that are ready or in the making: of processes at least four each."""
    if workers.kind == "thread":
        return as_asked(workers)
    return workers.count * QUEUES * (_queue_size(workers) + 1)


def _queue_size(workers: PipelineWorkers) -> int:
    """Return the least size of a process's queues with which it holds as many batches as asked for."""
    return max(1, -(-workers.per_worker // QUEUES) - 1)


def _parse_flags() -> None:
    """Mark Abseil's flags as parsed, which Grain reads when it starts a process."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
