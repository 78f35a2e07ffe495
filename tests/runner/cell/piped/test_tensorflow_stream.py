"""The stream of TensorFlow: how many batches its data set holds between epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from keras_matrix.runner.cell.piped.timers import StreamRequest

pytestmark = pytest.mark.process  # imports TensorFlow

BATCH_S, QUIET_S, EPOCHS, STEPS = 0.002, 0.3, 4, 30


# The last part of a data set: the batches that it prefetches itself, and whether others are prefetched after it.
ENDS = {
    "prefetch(AUTOTUNE)": (0, True),
    "prefetch(AUTOTUNE) with options": (0, True),
    "nothing": (0, True),
    "prefetch(3)": (3, False),
    "options that forbid prefetching": (0, False),
    "options without optimizations": (0, False),
}
# Of those that prefetch and those that do not, the first is tried with every change.
NIGHTLY = [ends for ends in ENDS if ends not in ("prefetch(AUTOTUNE)", "prefetch(3)")]


class Slow:
    """A source that takes its time for a batch and counts those that it made."""

    def __init__(self) -> None:
        self.made = 0

    def batches(self) -> Iterator[tuple[Any, Any]]:
        while True:
            time.sleep(BATCH_S)
            self.made += 1
            yield np.zeros((4, 2), np.float32), np.zeros(4, np.int32)

    def rest(self) -> int:
        """Wait until no batch is made any more; return how many were."""
        made = -1
        while made != self.made:
            made = self.made
            time.sleep(QUIET_S)
        return made


@pytest.mark.parametrize(
    "ends", [pytest.param(ends, marks=pytest.mark.nightly if ends in NIGHTLY else ()) for ends in ENDS]
)
def test_queue_does_not_grow_with_the_pauses_between_epochs_and_is_dropped_before_each(ends: str) -> None:
    import tensorflow as tf

    from keras_matrix.runner.cell.backends.tensorflow_stream import TUNED, DatasetStream

    slow = Slow()
    signature = (tf.TensorSpec((4, 2), tf.float32), tf.TensorSpec((4,), tf.int32))
    dataset = tf.data.Dataset.from_generator(slow.batches, output_signature=signature)
    options = tf.data.Options()
    if "prefetch(AUTOTUNE)" in ends:
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    if ends == "prefetch(3)":
        dataset = dataset.prefetch(3)
    if ends == "options that forbid prefetching":
        options.experimental_optimization.inject_prefetch = False
    if ends == "options without optimizations":
        options.experimental_optimization.apply_default_optimizations = False
    if "options" in ends:
        dataset = dataset.with_options(options)
    stream = DatasetStream(StreamRequest(None, dataset, 4, drops_partial=False, timers=None))
    batches = iter(stream.feed(1).source.get_tf_dataset())
    next(batches)
    own, prefetched = ENDS[ends]
    assert stream.prefetched == (TUNED if prefetched else 0)
    held = []
    for _ in range(EPOCHS):
        before = slow.rest()
        stream.drop(own + stream.prefetched)
        dropped = slow.rest() - before
        assert dropped == own + stream.prefetched
        for _ in range(STEPS):
            next(batches)
        held.append(slow.rest() - before - dropped - STEPS)
    assert held == [0] * EPOCHS  # as many are made as are drawn: the queue has the same size at each rest
