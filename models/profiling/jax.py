"""JAX's profiler, without Python's own calls, which would be four of five events."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax

from keras_matrix.models.profiling import XPlaneProfiler


class Profiler(XPlaneProfiler):
    """JAX's profiler."""

    def __init__(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        super().__init__(partial(jax.profiler.start_trace, profiler_options=options), jax.profiler.stop_trace)

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = jax.profiler.TraceAnnotation(name)
        return mark

    def root(self, name: str, number: int) -> AbstractContextManager[Any]:
        root: AbstractContextManager[Any] = jax.profiler.StepTraceAnnotation(name, step_num=number)
        return root

    def scope(self, name: str) -> None:
        return None  # each scope that Keras opens has its own name in the compiled program

    def note_loss(self, loss: Any) -> None:
        return None  # the compiled programs are in the file

    def graph(self) -> None:
        return None
