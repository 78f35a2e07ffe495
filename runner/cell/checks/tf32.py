"""Determines by computing which float32 operations of a backend use TF32 on this GPU.

TF32 keeps 10 of the 23 bits of float32's mantissa; GPUs of compute capability 8.0 and newer have it (NVIDIA, "CUDA C++
Programming Guide", compute capabilities; NVIDIA A100 architecture whitepaper, "TF32"). Each probe computes the same
operation on 1 and on 1 + 2**-12, which TF32 rounds or cuts to 1: with TF32 the two results are equal, in float32 they
differ by about 2**-12. Settings alone are not sufficient: `NVIDIA_TF32_OVERRIDE` overrides them, PyTorch has one for
products and others for cuDNN, and TensorFlow and JAX allow TF32 even if the GPU does not have it.

The probes run after everything timed, on a GPU only, and never fail a cell: a probe that raises is None. A library that
may use TF32 chooses a kernel by shape, so that a probe shows the choice for its own shapes, which are multiples of
those of tensor cores.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_matrix.runner.cell.backends import BackendAdapter

FIRST_WITH_TF32 = (8, 0)
FINE = 1 + 2.0**-12
# In float32 the results differ by 2**-12, times the slope of an LSTM's functions (1.2); with TF32 they are equal.
LEAST_DIFFERENCE = 2.0**-14
# Names of Keras's layers, some of which are missing in older versions.
_CONVOLUTIONS = (
    *(f"Conv{n}D{kind}" for n in (1, 2, 3) for kind in ("", "Transpose")),
    *(f"{kind}Conv{n}D" for n in (1, 2) for kind in ("Depthwise", "Separable")),
)
_PRODUCTS = ("Dense", "EinsumDense", "Dot", "Attention", "MultiHeadAttention", "GroupQueryAttention")


def uses_tf32(of_one: Any, of_fine: Any) -> bool | None:
    """Return whether an operation dropped the bits that TF32 drops, from its results for operands of 1 and of `FINE`.

    None if the results are not conclusive: not finite, or zero.
    """
    coarse, fine = (np.asarray(values, dtype=np.float64) for values in (of_one, of_fine))
    if not (np.isfinite(coarse).all() and np.isfinite(fine).all() and coarse.all()):
        return None
    return bool(np.median(np.abs(fine - coarse) / np.abs(coarse)) < LEAST_DIFFERENCE)


def may_use_tf32(adapter: BackendAdapter) -> bool | None:
    """Return whether matrix products may use TF32: the backend's settings allow it, on a GPU that may have it."""
    return False if _is_without_tf32(adapter) else adapter.tf32()


def tf32_of(adapter: BackendAdapter, jit: bool) -> dict[str, bool | None]:
    """Return the fields of `Resolved` about TF32: of each operation, and of any; `jit` as the cell's step has it."""
    if _is_without_tf32(adapter):
        return dict.fromkeys(("tf32", *PROBES), False)
    answers = {name: _answer(probe, adapter, jit) for name, probe in PROBES.items()}
    known_answers = [value for value in answers.values() if value is not None]
    return {"tf32": any(known_answers) if known_answers else None, **answers}


def _is_without_tf32(adapter: BackendAdapter) -> bool:
    capability = adapter.compute_capability()
    return capability is not None and capability < FIRST_WITH_TF32


def operations_of(model: Any) -> list[str]:
    """Return which of matmul, convolution and rnn a model's layers compute; empty if a layer is not Keras's own."""
    operations = set()
    # Not in Keras's public interface: if it is missing, the operations are unknown.
    layers: Callable[..., Any] = getattr(model, "_flatten_layers", lambda include_self: [])
    for layer in layers(include_self=False):
        if not type(layer).__module__.startswith(f"{keras.__name__}."):
            return []
        if isinstance(layer, _classes(_CONVOLUTIONS)):
            operations.add("convolution")
        elif isinstance(layer, _classes(_PRODUCTS)):
            operations.add("matmul")
        elif isinstance(layer, keras.layers.RNN):
            operations |= {"matmul", "rnn"}  # some backends have no fused kernel and loop over products
    return sorted(operations)


def _classes(names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(layer_class for name in names if (layer_class := getattr(keras.layers, name, None)))


def _answer(probe: Callable[[BackendAdapter, bool], bool | None], adapter: BackendAdapter, jit: bool) -> bool | None:
    try:
        return probe(adapter, jit)
    except Exception as error:  # noqa: BLE001 - any error of a backend: this fact alone is missing
        print(f"use of TF32 is unknown: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _matmul(adapter: BackendAdapter, jit: bool) -> bool | None:
    weights = _weights((256, 256))
    return _compared(lambda inputs: keras.ops.matmul(inputs, weights), (256, 256), adapter, jit)


def _convolution(adapter: BackendAdapter, jit: bool) -> bool | None:
    kernel = _weights((3, 3, 64, 64))

    def convolve(inputs: Any) -> Any:
        return keras.ops.conv(inputs, kernel, padding="valid", data_format="channels_last")

    return _compared(convolve, (8, 32, 32, 64), adapter, jit)


def _rnn(adapter: BackendAdapter, jit: bool) -> bool | None:
    units = 64
    layer = keras.layers.LSTM(units, recurrent_initializer="zeros", unit_forget_bias=False, dtype="float32")
    layer.build((units, 1, units))
    # Sums of `units` products, from 0.25 to 0.5, in which range the gates' functions are steep.
    layer.cell.kernel.assign(_weights((units, 4 * units)) * (0.5 / units))
    return _compared(layer, (units, 1, units), adapter, jit and layer.supports_jit)


PROBES: dict[str, Callable[[BackendAdapter, bool], bool | None]] = {
    "tf32_matmul": _matmul,
    "tf32_convolution": _convolution,
    "tf32_rnn": _rnn,
}


def _compared(
    function: Callable[[Any], Any], shape: tuple[int, ...], adapter: BackendAdapter, jit: bool
) -> bool | None:
    """Return the decision on one operation, applied to an array of ones and to one of `FINE`."""
    results = [adapter.run(function, (_float32(np.full(shape, value)),), jit) for value in (1.0, FINE)]
    return uses_tf32(*(keras.ops.convert_to_numpy(tensor) for tensor in results))


def _weights(shape: tuple[int, ...]) -> Any:
    """Return weights that TF32 represents exactly: 1 and 0.5. Equal ones a compiler could turn into a sum."""
    return _float32(np.where(np.arange(math.prod(shape)) % 3, 1.0, 0.5).reshape(shape))


def _float32(values: Any) -> Any:
    return keras.ops.convert_to_tensor(values.astype(np.float32))
