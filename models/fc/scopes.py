"""Name scopes of a program's computations, by which a trace identifies phase and layer.

JAX and TensorFlow store them in the graph while a step is traced, without cost at run time. On PyTorch, where every
step is Python, they are marks of the profiler, only while it records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from keras.backend import backend

from keras_matrix.records.traces.request import LAYER, PHASE

Context = AbstractContextManager[Any]
Naming = Callable[[str, str], Context]

_NOTHING = nullcontext()


def scope(phase: str, layer: int | None = None) -> Context:
    """Return a context that names the operations within it after their phase and the number of their layer."""
    if _naming is None:
        return _NOTHING
    within = ExitStack()
    within.enter_context(_naming(PHASE, phase))
    if layer is not None:
        within.enter_context(_naming(LAYER, layer_name(layer)))
    return within


def layer_name(number: int) -> str:
    """Return the name of a layer."""
    return f"layer_{number}"


def mark_with(mark: Callable[[str], Context] | None) -> None:
    """Let the profiler of an eager backend mark every scope from now on; None stops this."""
    global _naming  # noqa: PLW0603 - a process has one profiler
    _naming = None if mark is None else lambda kind, name: mark(f"{kind}{name}")


def _of_jax(kind: str, name: str) -> Context:
    import jax

    named: Context = jax.named_scope(name)
    return named


def _of_tensorflow(kind: str, name: str) -> Context:
    import tensorflow as tf

    # With its final slash the name is absolute; otherwise a second scope with the same name would get a number.
    around = tf.get_current_name_scope()
    named: Context = tf.name_scope(f"{around}/{name}/" if around else f"{name}/")
    return named


_naming: Naming | None = {"jax": _of_jax, "tensorflow": _of_tensorflow}.get(backend())
