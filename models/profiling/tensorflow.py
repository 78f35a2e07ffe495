"""TensorFlow's profiler. Python's own calls are not recorded: most events would be these."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_matrix.models.profiling.folder import Folder
from keras_matrix.records.traces.conversion import XPLANE
from keras_matrix.records.traces.request import scope_of


class Profiler:
    """TensorFlow's, on any device."""

    ending = XPLANE
    marks_name_layers = True
    steps_are_python = False

    def __init__(self) -> None:
        self._options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        self._folder = Folder()

    def start(self) -> None:
        with self._folder.kept_if_begun() as folder:
            tf.profiler.experimental.start(folder, options=self._options)

    def stop(self, path: Path) -> None:
        with self._folder.left_at(path):
            tf.profiler.experimental.stop()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = tf.profiler.experimental.Trace(name)
        return mark

    def scope(self, name: str) -> AbstractContextManager[Any]:
        # A scope that ends so stands for itself. Keras's own get numbers where they come again: its second conv2d may
        # be called as another layer is.
        around, own = tf.get_current_name_scope(), scope_of(name)
        named: AbstractContextManager[Any] = tf.name_scope(f"{around}/{own}/" if around else f"{own}/")
        return named
