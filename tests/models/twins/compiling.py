"""The ways to compile a step of native code, and which of them a function has: what its backend made of it."""

import inspect
import os

from keras_matrix.models.twins.interface import Compiled

BACKEND = os.environ["KERAS_BACKEND"]
WAYS = {"jit": Compiled(True, False), "graph": Compiled(False, False), "eager": Compiled(False, True)}


def way_of(function):
    """Return how a function is compiled, or what it calls from its closure; "eager" if neither is."""
    if found := _compiled(function):
        return found
    enclosed = inspect.getclosurevars(function).nonlocals.values()
    return " and ".join(way for one in enclosed if (way := _compiled(one))) or "eager"


def _compiled(one):
    if BACKEND == "jax":
        import jax

        return "jit" if isinstance(one, jax.stages.Wrapped) else ""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        if not isinstance(one, tf.types.experimental.PolymorphicFunction):
            return ""
        return "jit" if one._jit_compile else "graph"
    return "jit" if hasattr(one, "_torchdynamo_orig_callable") or type(one).__name__ == "OptimizedModule" else ""
