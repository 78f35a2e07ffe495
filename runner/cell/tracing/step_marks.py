"""Marks the steps of `fit`, and the waits for its input, in the profile that is written for TensorBoard.

Keras's `fit` has no step markers: without them XProf's input-pipeline analyzer reports "No step time measured". A step
begins when its batch is drawn or, on TensorFlow, where the compiled step draws it, when Keras calls the step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from keras_matrix.models.profiling import Profiler
from keras_matrix.records.traces.request import WAIT_FOR_INPUT
from keras_matrix.runner.cell.tracing.draws import with_draws


class StepMarks(keras.callbacks.Callback):  # type: ignore[misc]
    """Marks each step of the calls of `fit` that it is a callback of. Keras waits for each step to end."""

    def __init__(self, profiler: Profiler) -> None:
        super().__init__()
        self._profiler = profiler
        self._number = 0
        self._in_epoch = False
        self._step: ExitStack | None = None

    def source(self, source: Any) -> Any:
        """Return the source with a mark around the draw of each batch."""
        return with_draws(source, self._draw)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._step is not None:
            self._step.close()
            self._step = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._in_epoch = False
        self.on_train_batch_end(epoch)

    def _draw(self, draw: Callable[[], Any]) -> Any:
        if not self._in_epoch:  # Keras reads batches of a generator before it trains
            return draw()
        self._begin()
        with self._profiler.mark(WAIT_FOR_INPUT):
            return draw()

    def _begin(self) -> None:
        if self._step is None:
            self._number += 1
            self._step = ExitStack()
            self._step.enter_context(self._profiler.step(self._number))
