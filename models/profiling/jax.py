"""JAX's profiler. Python's own calls are not recorded: four of five events would be these."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from keras_matrix.models.profiling.folder import Folder
from keras_matrix.records.traces.conversion import XPLANE


class Profiler:
    """JAX's, on any device."""

    ending = XPLANE
    marks_name_layers = False
    steps_are_python = False

    def __init__(self) -> None:
        self._options = jax.profiler.ProfileOptions()
        self._options.python_tracer_level = 0
        self._folder = Folder()

    def start(self) -> None:
        with self._folder.kept_if_begun() as folder:
            jax.profiler.start_trace(folder, profiler_options=self._options)

    def stop(self, path: Path) -> None:
        with self._folder.left_at(path):
            jax.profiler.stop_trace()

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = jax.profiler.TraceAnnotation(name)
        return mark

    def scope(self, name: str) -> None:
        return None  # each scope that Keras opens stands in the compiled program under its own name
