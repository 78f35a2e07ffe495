"""Model outputs with sufficient precision for the loss, and the 2017 suite's optimiser."""

from __future__ import annotations

from typing import Any

import keras


def probabilities(logits: Any) -> Any:
    """Softmax in float32 (float64 under a float64 policy): low precision would round the loss away."""
    return keras.layers.Activation("softmax", dtype=loss_dtype(), name="probabilities")(logits)


def float_logits(logits: Any) -> Any:
    """`logits` in the dtype of the loss."""
    return keras.layers.Activation("linear", dtype=loss_dtype(), name="logits")(logits)


def loss_dtype() -> str:
    """Float64 when everything is, float32 otherwise."""
    return "float64" if keras.config.dtype_policy().compute_dtype == "float64" else "float32"


def rmsprop(learning_rate: float, decay: float = 0.0) -> Any:
    """RMSprop; `decay` as in Keras 1 and 2: step t uses learning_rate / (1 + decay * t).

    Keras 3 has no such argument; InverseTimeDecay with decay_steps=1 is the same formula.
    """
    rate: Any = learning_rate
    if decay:
        rate = keras.optimizers.schedules.InverseTimeDecay(learning_rate, decay_steps=1, decay_rate=decay)
    return keras.optimizers.RMSprop(learning_rate=rate)
