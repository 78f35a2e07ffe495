"""Faults planted on purpose, so that the program can be asked whether it sees them.

    slower:SHARE        every step does SHARE more floating-point work than the model's own forward and backward pass

Real work of the backend, never a sleep: it meets the machine as the model does. How much slower a step becomes depends
on what bounds it; `runner selftest` measures that. Knows nothing of timing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from records.faults import parse

if TYPE_CHECKING:
    from models.registry import Built

TRAINING_PER_FORWARD = 3
SIDE = 256


def plant(built: Built, fault: str, batch_size: int) -> Built:
    """Return the workload with a fault in it. Raises `UnknownFault`."""
    _, share = parse(fault)
    step_flops = TRAINING_PER_FORWARD * batch_size * _forward_flops(built.model)
    products = max(1, round(share * step_flops / (2 * SIDE**3)))
    return replace(built, model=_burdened(built.model, products))


def _forward_flops(model: Any) -> float:
    """Return two operations a weight and sample: exact for dense layers, a start for the others."""
    return 2.0 * float(sum(math.prod(weight.shape) for weight in model.trainable_weights))


def _burdened(model: Any, products: int) -> Any:
    """Return the same model with matrix products that change no figure behind its output, compiled alike."""
    import keras
    import numpy as np
    from keras import ops

    numbers = np.random.default_rng(0).normal(0, SIDE**-0.5, (SIDE, SIDE))

    class Burden(keras.layers.Layer):  # type: ignore[misc]
        """Adds to its input what is far below rounding, but takes `products` matrix products to know."""

        def call(self, inputs: Any) -> Any:
            # No weight: the model must stay the same work. It begins with the input, or a compiler would do it once.
            matrix = ops.cast(ops.convert_to_tensor(numbers), inputs.dtype)
            grown = matrix * (1.0 + ops.mean(ops.stop_gradient(inputs)))
            for _ in range(products):
                grown = ops.tanh(ops.matmul(grown, matrix))
            return inputs + ops.cast(ops.mean(grown), inputs.dtype) * 1e-30

    burdened = keras.Model(model.inputs, Burden()(model.outputs[0]), name=model.name)
    burdened.compile(**_compiled_with(model))
    return burdened


def _compiled_with(model: Any) -> dict[str, Any]:
    import keras

    settings: dict[str, Any] = model.get_compile_config()
    restored = keras.saving.deserialize_keras_object(settings)
    return {key: value for key, value in restored.items() if value is not None}
