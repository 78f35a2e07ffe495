"""The workloads of `runner first-hour`, `keras_matrix.runner.cell.checks.workloads:NAME` in a matrix."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

FLOAT_BYTES = 4
CHUNK = 256  # MiB of one array: one of many GiB would be refused for its number of elements


def products(rows: int, batch: int, layers: int = 4) -> Any:
    """Dense layers whose matrix products fill a step: 6 x batch x rows^2 x layers FLOPs."""
    model = keras.Sequential([keras.Input((rows,)), *(keras.layers.Dense(rows, use_bias=False) for _ in range(layers))])
    model.compile(optimizer=keras.optimizers.SGD(1e-6), loss="mse")
    return model, np.ones((batch, rows), "float32"), np.ones((batch, rows), "float32")


def ballast(megabytes: int) -> Any:
    """A small model that also holds so many MiB of weights, which no step reads."""
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(1)(_Ballast(megabytes)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return model, np.ones((64, 8), "float32"), np.ones((64, 1), "float32")


class _Ballast(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.megabytes = megabytes

    def build(self, input_shape: Any) -> None:
        for begin in range(0, self.megabytes, CHUNK):
            elements = (min(CHUNK, self.megabytes - begin) << 20) // FLOAT_BYTES
            self.add_weight(shape=(elements,), initializer="ones", trainable=False)

    def call(self, inputs: Any) -> Any:
        return inputs
