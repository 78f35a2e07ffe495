"""Which part of a batch a model's layers receive in a training step of the workload's own.

Keras's loss metric counts the samples of a step only if the step updates it with their number, which a step of the
workload's own may leave out, or do with another number. So such a model takes one more step after everything timed,
without compiling: each call of a layer with trainable weights is noted, with the rows that it received. Calls are
summed: micro-batches that together are the batch receive all of it, and so does a model that is called on twice the
batch.

A step proves that less than the batch was used only if no such layer received as many rows as the batch has, nor as
many numbers as the batch's inputs: a step may fold rows into another dimension. Where a layer receives arrays whose
rows are not known, as under `jax.vmap` or `tf.vectorized_map`, nothing is known, and no workload is accused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch

_plain_call = keras.layers.Layer.__call__


class Received:
    """The rows and numbers that each layer with trainable weights received, summed over its calls."""

    def __init__(self, shape_of: Callable[[Any], tuple[int, ...] | None]) -> None:
        """Take the function that returns an array's shape, None if the array stands for several."""
        self._shape_of = shape_of
        self._rows: dict[int, int] = {}
        self._elements: dict[int, int] = {}
        self._unknown = False

    def note(self, layer: Any, arguments: Any) -> None:
        """Note one call of a layer."""
        if not layer.trainable_weights:
            return
        arrays = [part for part in keras.tree.flatten(arguments) if getattr(part, "shape", ())]
        shapes = [self._shape_of(array) for array in arrays]
        if None in shapes:
            self._unknown = True
        known = [shape for shape in shapes if shape]
        key = id(layer)
        self._rows[key] = self._rows.get(key, 0) + max((shape[0] for shape in known), default=0)
        self._elements[key] = self._elements.get(key, 0) + sum(map(math.prod, known))

    def samples(self, batch_size: int, elements: int) -> int | None:
        """Return how many samples of a batch, whose inputs have so many numbers, a layer received; None if unknown."""
        if self._unknown or not self._rows:
            return None
        if max(self._elements.values()) >= elements:
            return batch_size
        return min(batch_size, max(self._rows.values()))


def received_samples(adapter: BackendAdapter, model: Any, batch: Batch, step: Callable[[], None]) -> int | None:
    """Take one step of `fit` with this function, not compiled; return how many samples of its batch a layer received.

    None if it is not known, as for a model that calls no layer or fails without being compiled.
    """
    arrays = [part for part in keras.tree.flatten(batch[0]) if getattr(part, "shape", ())]
    if not arrays:
        return None
    received = Received(adapter.shape_of)
    try:
        with _not_compiled(model), adapter.not_compiled(), _noting(received):
            step()
    except Exception as error:  # noqa: BLE001 - any error of a user's model: this fact alone is missing
        print(f"the samples of a step are not known: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return received.samples(int(arrays[0].shape[0]), sum(math.prod(array.shape) for array in arrays))


@contextmanager
def _noting(received: Received) -> Iterator[None]:
    def noted(layer: Any, *arguments: Any, **named: Any) -> Any:
        received.note(layer, (arguments, named))
        return _plain_call(layer, *arguments, **named)

    keras.layers.Layer.__call__ = noted
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = _plain_call


@contextmanager
def _not_compiled(model: Any) -> Iterator[None]:
    """Run the model's steps one operation at a time, one step a call; its compiled functions are kept."""
    names = ("train_function", "run_eagerly", "steps_per_execution", "_jit_compile")
    kept = {name: getattr(model, name) for name in names}
    model.train_function, model.run_eagerly, model.steps_per_execution = None, True, 1
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(model, name, value)
