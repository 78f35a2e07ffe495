"""Keeps float64, which Keras's own type promotion converts to float32 on two backends."""

from __future__ import annotations


def keep_float64() -> None:
    """Let Keras compute in float64 if that was requested.

    Keras 3.15 on JAX and PyTorch converts every float64 result of its type promotion to float32 (on TensorFlow the
    table below has no such entry), so that normalisations and means, on PyTorch also dense layers, compute in float32
    under a float64 policy. Timed cells keep this behaviour of Keras; parity processes and the FC modes disable it,
    since float64 distinguishes errors from rounding.
    """
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
