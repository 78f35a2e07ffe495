"""Options of the entire process that a workload's own code may change, and in which types it really computes.

The runner sets some of these options from the matrix, before it calls the workload; the others have the backend's
defaults. Whatever differs after training was changed by the workload: it was used, so it is stated. An option that is
changed and changed back shows only in its effects, such as the types of the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import ml_dtypes  # noqa: F401 - teaches NumPy the name bfloat16
import numpy as np

from keras_matrix.runner.cell.backends import BackendAdapter

NO_SEED = "none"
_loaded_keras = keras


def process_options(adapter: BackendAdapter) -> dict[str, str]:
    """Return the options of Keras and of the backend that hold for the entire process, as text."""
    config = keras.config
    found = {
        "floatx": config.floatx(),
        "dtype_policy": config.dtype_policy().name,
        "epsilon": config.epsilon(),
        "image_data_format": config.image_data_format(),
        "traceback_filtering": config.is_traceback_filtering_enabled(),
        "keras.utils.set_random_seed": _seed(),
        **adapter.process_options(),
    }
    return {name: str(value) for name, value in found.items()}


def changed_options(before: Mapping[str, str], after: Mapping[str, str], seed: int) -> list[str]:
    """Return the options that differ, as NAME=VALUE (was VALUE); a seed equal to the matrix's is not another one."""
    same_seed = {"keras.utils.set_random_seed": str(seed)}
    return [
        f"{name}={value} (was {before.get(name)})"
        for name, value in after.items()
        if value not in (before.get(name), same_seed.get(name))
    ]


def check_backend(backend: str) -> None:
    """Raise ValueError if the workload replaced Keras by one of another backend."""
    if sys.modules.get("keras") is _loaded_keras and keras.backend.backend() == backend:
        return
    raise ValueError(
        f"backend: the workload loaded Keras anew or for another backend, as keras.config.set_backend does, but the "
        f"cell's backend is {backend}; remove that call, and set backends in the matrix"
    )


def layer_policies(model: Any) -> list[str]:
    """Return the names of the dtype policies of the model's layers that have weights of their own.

    A map of policies, as quantised models of KerasHub have, is a policy without a name.
    """
    layers = model._flatten_layers(include_self=True)
    own = (layer for layer in layers if layer._trainable_variables or layer._non_trainable_variables)
    return sorted({layer.dtype_policy.name or type(layer.dtype_policy).__name__ for layer in own})


def weight_dtypes(model: Any) -> list[str]:
    """Return the types in which the model's weights are stored: those of their arrays, not those declared."""
    return sorted({stored_dtype(variable) for variable in model.weights})


def stored_dtype(variable: Any) -> str:
    """Return the type of a variable's array. JAX without x64 stores as float32 what is declared as float64."""
    dtype: str = keras.backend.standardize_dtype(_array(variable).dtype)
    return dtype


def stored_bytes(variables: Iterable[Any]) -> int:
    """Return the size of variables as they are stored."""
    return sum(int(np.prod(one.shape)) * np.dtype(stored_dtype(one)).itemsize for one in variables)


def itemsize_of(dtype: str) -> int:
    """Return the bytes of one number in a new array of this type, which the backend may store in another one."""
    return int(np.dtype(keras.backend.standardize_dtype(keras.ops.zeros((1,), dtype).dtype)).itemsize)


def _array(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _seed() -> object:
    """Return the seed that `keras.utils.set_random_seed` stored; Keras's public interface does not state it."""
    try:
        from keras.src.utils.rng_utils import get_random_seed
    except ImportError:
        return NO_SEED
    seed = get_random_seed()
    return NO_SEED if seed is None else seed
