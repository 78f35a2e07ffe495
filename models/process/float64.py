"""Float64 that stays float64: Keras's own type promotion makes float32 of it on two backends."""

from __future__ import annotations


def keep_float64() -> None:
    """Let Keras compute in float64 where that was asked.

    Keras 3.15 on JAX and PyTorch makes float32 of every float64 that comes out of its type promotion (the table below
    is empty of this on TensorFlow), so that normalisations and means, on PyTorch also dense layers, compute in float32
    under a float64 policy. For a timed cell that is Keras as it is; a twin and the FC modes lift the rule, since
    float64 is the lens that tells faults from rounding.
    """
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
