"""The pipeline that JAX programs use, Grain, and a timed wait within the compiled step."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from keras_matrix.models.inputs.pipelines import grain

PIPELINE = "grain"
KINDS = grain.KINDS
DECODES = False
WAITS_IN_COMPILED_STEP = True
source = grain.source
depth = grain.depth


def timed_wait(after: Any, seconds: float) -> Any:
    """Return a zero of the dtype of `after` once `seconds` have passed since `after` was computed. No gradient.

    A callback with effects is neither removed nor repeated by the compiler. Its argument is one number: a callback that
    converts large arrays can deadlock with the only thread of a CPU device.
    """
    dtype = np.dtype(after.dtype)

    def wait(_: Any) -> Any:
        time.sleep(seconds)
        return np.zeros((), dtype)

    scalar = jax.lax.stop_gradient(jnp.ravel(after)[0])
    return io_callback(wait, jax.ShapeDtypeStruct((), dtype), scalar)
