"""Turns samples into full batches, wrapping to the first samples, so that every step does the same work; feeds them.

The batches of a workload with an input pipeline come from it; few enough to hold them all in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_matrix.models.workload import InputPipeline, arrays_in, map_arrays
from keras_matrix.records.settings import Settings

Batch = Any
"""What a model's `train_step` receives: `(x, y)`, `(x, y, sample_weight)`, `(x,)`, or x itself without targets."""
# Keras reads two batches of a generator in advance, one of a data set, and on a GPU stays one batch ahead.
LOOKAHEAD = 4
# Of a pipeline's batches: enough that a step does not find its batch in the CPU's caches.
HELD_BYTES = 64 << 20
LEAST_HELD = 2


@dataclass(frozen=True, slots=True)
class Feed:
    """An endless source of batches for one call of `fit`, and how many batches were drawn from it so far.

    `drawn` may pull what is left from a finite source, so it is called once, after `fit`. `lookahead` is how many
    batches more than it trains on Keras may draw; None where a prefetching thread decides that.
    """

    source: Any
    drawn: Callable[[], int | None]
    lookahead: int | None


Feeder = Callable[[int], Feed]
"""Makes the feed of one call of `fit` from the number of batches that the call needs."""


def steps_of_pass(settings: Settings) -> int:
    """Return the steps of one pass over the samples: ceil(samples / batch_size)."""
    return math.ceil(settings.samples / settings.batch_size)


def make_batches(workload: Any, settings: Settings, steps: int) -> list[Batch]:
    """Return the distinct batches of an epoch: one pass over the samples, or fewer if an epoch of `steps` uses fewer.

    Arrays keep their dtype; each has leading dimension `batch_size`. The last batch wraps to the first samples.
    """
    if workload.pipeline is not None:
        return held_batches(workload.pipeline, steps)
    count = min(steps_of_pass(settings), steps)
    available = min(settings.samples, count * settings.batch_size)
    parts = workload.samples(available, settings.seed)
    indices = np.arange(count * settings.batch_size) % available
    return [packed(_taken(parts, rows)) for rows in indices.reshape(count, settings.batch_size)]


def packed(parts: tuple[Any, ...]) -> Batch:
    """Return `(x,)`, `(x, y)` or `(x, y, sample_weight)` as `fit` hands them to a model (`pack_x_y_sample_weight`).

    Without targets that is x itself, unless x is a tuple or a list.
    """
    x, y, weight = (*parts, None, None)[:3]
    if y is None:
        return (x,) if isinstance(x, (tuple, list)) else x
    return (x, y) if weight is None else (x, y, weight)


def parts_of(batch: Batch) -> tuple[Any, ...]:
    """Return a batch as `(x,)`, `(x, y)` or `(x, y, sample_weight)`, as Keras's `unpack_x_y_sample_weight` reads it."""
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def inputs_of(batch: Batch) -> Any:
    """Return the inputs of a batch."""
    return parts_of(batch)[0]


def held_batches(pipeline: InputPipeline, steps: int) -> list[Batch]:
    """Return a pipeline's first batches: as many as an epoch uses, within one pass and `HELD_BYTES`, at least 2."""
    first_batches = pipeline.in_memory(1)
    size_bytes = _size_bytes(first_batches)
    count = max(LEAST_HELD, min(pipeline.batches_per_pass or steps, HELD_BYTES // max(1, size_bytes)))
    batch_count = min(count, steps)
    return [*first_batches] if batch_count == 1 else [*pipeline.in_memory(batch_count)]


def _size_bytes(structure: Any) -> int:
    return sum(int(getattr(array, "nbytes", 0)) for array in arrays_in(structure))


def _taken(structure: Any, rows: Any) -> Any:
    return map_arrays(lambda array: array[rows], structure)


def round_and_round(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Yield the batches endlessly. A generator, which `fit` recognises as a source."""
    while True:
        yield from batches


def counted_feed(batches: Sequence[Batch], lookahead: int | None = LOOKAHEAD) -> Feed:
    """Return an endless feed of these batches whose generator counts what is drawn."""
    drawn_count = [0]

    def source() -> Iterator[Batch]:
        for batch in round_and_round(batches):
            drawn_count[0] += 1
            yield batch

    return Feed(source(), lambda: drawn_count[0], lookahead)
