"""Batches through Grain, which `fit` accepts on every backend: threads that share the interpreter, or processes."""

from __future__ import annotations

from typing import Any

from keras_matrix.models.inputs.pipelines.interface import ENDLESS, Loader, Workers

KINDS = ("thread", "process")


def source(loader: Loader, batch_size: int, workers: Workers, timed: bool) -> Any:
    """Return a `grain.IterDataset` of batches."""
    import grain

    batches = grain.MapDataset.range(ENDLESS).map(loader.timed if timed else loader.__call__)
    if workers.count == 0 or workers.kind == "thread":
        return batches.to_iter_dataset(grain.ReadOptions(workers.count, workers.depth))
    _parse_flags()
    # Each process prepares in its only thread; Grain's own default is 16 more.
    alone = batches.to_iter_dataset(grain.ReadOptions(0, 0))
    return alone.mp_prefetch(grain.MultiprocessingOptions(workers.count, per_worker_buffer_size=workers.per_worker))


def _parse_flags() -> None:
    """Mark Abseil's flags as parsed, which Grain reads when it starts a process."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
