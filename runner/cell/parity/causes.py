"""The facts of a parity worker that known causes of deviations depend on: noted, reported, corrected on request.

A cause is a mechanism: an operation that a backend is known to compute inexactly
(`records.instruments.parity.Operation`), in any workload. `watch` notes which of them run, also in custom layers,
since it replaces the backend's own function; operations to be corrected are computed exactly. Deviations that remain
then have another cause.

The host judges them in `analysis.parity.known_deviations`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Collection
from functools import wraps
from types import FrameType
from typing import Any

import keras

from keras_matrix.records.instruments.parity import Facts, Operation

Note = Callable[[Operation], None]


def watch(backend: str, correct: Collection[Operation]) -> set[Operation]:
    """Watch a backend's inexact operations from now on, and compute those in `correct` exactly.

    Returns the set of those that ran, which fills as the process runs.
    """
    ran: set[Operation] = set()
    if keras.config.floatx() == "float64":
        _watch_float32(ran.add, Operation.FLOAT32_LAYERS in correct)
    if backend == "tensorflow":
        _watch_gelu(ran.add, Operation.GELU in correct)
        if Operation.PYTHON_FLOATS in correct:
            _keep_python_floats()
    if backend == "jax":
        _watch_attention(ran.add, Operation.ATTENTION_SOFTMAX in correct)
    return ran


def facts(optimizer: Any, ran: Collection[Operation]) -> Facts:
    """Return the facts of a worker that trained with this optimizer."""
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return Facts(
        optimizer=keras_class(optimizer),
        hyperparameters=hyperparameters(optimizer),
        scheduled=isinstance(optimizer._learning_rate, schedule),
        operations=sorted(ran),
    )


def keras_class(optimizer: Any) -> str:
    """Return the name of Keras's class of an optimizer; of a user's subclass, that of the class it derives from."""
    return next(kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("keras."))


def hyperparameters(optimizer: Any) -> dict[str, float]:
    """Return the finite numbers of an optimizer's configuration; switches and names are left out."""
    try:
        config = optimizer.get_config()
    except Exception as error:  # noqa: BLE001 - any error of a user's optimizer: the causes that need it do not apply
        print(f"hyperparameters not reported: {type(error).__name__}: {error}", file=sys.stderr)
        return {}
    numbers = {name: float(value) for name, value in config.items() if type(value) in (int, float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def rows_of(gradient: Any) -> Any:
    """Return the indices of the rows of TensorFlow's sparse gradient; None for a dense one."""
    return gradient.indices if type(gradient).__name__ == "IndexedSlices" else None


def repeated(indices: Any) -> Any:
    """Return how many of these indices repeat another one, as a tensor."""
    ordered = keras.ops.sort(indices)
    return keras.ops.sum(keras.ops.cast(ordered[1:] == ordered[:-1], "int32"))


# By these functions KerasHub's layers ask for float32.
_TYPED = ("arange", "cast", "convert_to_tensor")


def _watch_float32(note: Note, correct: bool) -> None:
    """Watch the layers of KerasHub that compute in float32 under a float64 policy, such as normalisations.

    Such a layer casts between the two by `keras.ops`, or contains a layer of that dtype. A user's own layer of float32
    is left alone: its author can change it.
    """
    if correct:
        for name in _TYPED:
            setattr(keras.ops, name, _in_float64(getattr(keras.ops, name)))
    cast, create = keras.ops.cast, keras.layers.Layer.__init__

    def noting_cast(x: Any, dtype: Any) -> Any:
        if {_name(getattr(x, "dtype", None)), _name(dtype)} == {"float32", "float64"} and _asked_by_keras_hub():
            note(Operation.FLOAT32_LAYERS)
        return cast(x, dtype)

    def noting_create(layer: Any, *rest: Any, dtype: Any = None, **named: Any) -> None:
        if dtype is not None and keras.dtype_policies.get(dtype).name == "float32" and _asked_by_keras_hub():
            note(Operation.FLOAT32_LAYERS)
            dtype = "float64" if correct else dtype
        create(layer, *rest, dtype=dtype, **named)

    keras.ops.cast, keras.layers.Layer.__init__ = noting_cast, noting_create


def _asked_by_keras_hub() -> bool:
    """Return whether the code that called Keras is KerasHub's."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _module(frame).startswith(("keras.", __name__)):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith("keras_hub.")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with float64 in place of a `dtype` of float32 that KerasHub asks for."""
    signature = inspect.signature(function)

    @wraps(function)
    def exact(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        if _name(given.arguments.get("dtype")) == "float32" and _asked_by_keras_hub():
            given.arguments["dtype"] = "float64"
        return function(*given.args, **given.kwargs)

    return exact


def _name(dtype: Any) -> str | None:
    return None if dtype is None else keras.backend.standardize_dtype(dtype)


def _watch_gelu(note: Note, correct: bool) -> None:
    """Watch tf.nn.gelu, which rounds its constants to float32 for every type of input."""
    import tensorflow as tf

    inexact = tf.nn.gelu

    def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Any:
        note(Operation.GELU)
        if not correct:
            return inexact(features, approximate, name)
        x = tf.convert_to_tensor(features)
        if approximate:
            return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))

    tf.nn.gelu = gelu


def _keep_python_floats() -> None:
    """Convert a Python float without a type to a tensor of float64, unlike TensorFlow, which uses float32."""
    import tensorflow as tf

    cast, convert = tf.cast, tf.convert_to_tensor

    def exact_cast(x: Any, dtype: Any, name: str | None = None) -> Any:
        return cast(tf.constant(x, tf.float64) if isinstance(x, float) else x, dtype, name)

    def exact_convert(value: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        return convert(value, tf.float64 if dtype is None and isinstance(value, float) else dtype, *rest, **named)

    tf.cast, tf.convert_to_tensor = exact_cast, exact_convert


def _watch_attention(note: Note, correct: bool) -> None:
    """Watch jax.nn.dot_product_attention, which computes its softmax in float32 for every type of input."""
    import jax
    from jax import numpy as jnp
    from keras.src.backend.jax.nn import _apply_masks

    inexact = jax.nn.dot_product_attention

    def attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **named: Any) -> Any:
        note(Operation.ATTENTION_SOFTMAX)
        if not correct:
            return inexact(query, key, value, bias, mask, **named)
        key, value = (jnp.repeat(array, query.shape[2] // array.shape[2], axis=2) for array in (key, value))
        scale = named.get("scale") or 1 / math.sqrt(query.shape[-1])
        logits = jnp.einsum("BTNH,BSNH->BNTS", query, key) * scale
        logits = logits if bias is None else logits + bias
        weights = jax.nn.softmax(_apply_masks(logits, mask, named.get("is_causal", False)), axis=-1)
        return jnp.einsum("BNTS,BSNH->BTNH", weights, value)

    jax.nn.dot_product_attention = attention
