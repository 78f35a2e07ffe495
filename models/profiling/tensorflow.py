"""TensorFlow's profiler, without Python's own calls, which would be most events."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import tensorflow as tf

from keras_matrix.models.profiling import XPlaneProfiler
from keras_matrix.records.traces.programs import ProgramSummary, counted
from keras_matrix.records.traces.request import scope_of


class Profiler(XPlaneProfiler):
    """TensorFlow's profiler."""

    marks_name_layers = True

    def __init__(self) -> None:
        profiler = tf.profiler.experimental
        options = profiler.ProfilerOptions(python_tracer_level=0)
        super().__init__(partial(profiler.start, options=options), profiler.stop)
        self._graph: Any = None

    def mark(self, name: str) -> AbstractContextManager[Any]:
        mark: AbstractContextManager[Any] = tf.profiler.experimental.Trace(name)
        return mark

    def root(self, name: str, number: int) -> AbstractContextManager[Any]:
        # As TensorFlow 2 marked the steps of its own Keras (`_r`: the root of what belongs to the step).
        root: AbstractContextManager[Any] = tf.profiler.experimental.Trace(name, step_num=number, _r=1)
        return root

    def scope(self, name: str) -> AbstractContextManager[Any]:
        # A scope with a final slash is absolute. Keras's own scopes get numbers if they repeat: its second conv2d may
        # have the same name as another layer.
        outer_scope, scope_name = tf.get_current_name_scope(), scope_of(name)
        name_context: AbstractContextManager[Any] = tf.name_scope(
            f"{outer_scope}/{scope_name}/" if outer_scope else f"{scope_name}/"
        )
        return name_context

    def note_loss(self, loss: Any) -> None:
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def graph(self) -> ProgramSummary | None:
        if self._graph is None:
            return None
        # As traced, before TensorFlow's own optimiser of graphs; the backward pass and the update are in the same one.
        return ProgramSummary(
            "TensorFlow graph", 1, counted(operation.type for operation in self._graph.get_operations())
        )
