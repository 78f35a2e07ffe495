"""Variants of one model with a known difference, for `runner explain`; `tests.workloads.explained:NAME` in a matrix.

`plain`; the same with a layer that does its product `twice`; and with a layer that copies a large buffer (`copied`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

FEATURES, UNITS, SAMPLES = 64, 512, 1024


def _model(products: int, mebibytes: int) -> Any:
    import keras
    from keras import ops

    class Product(keras.layers.Layer):  # type: ignore[misc]
        """A dense layer that does its product several times, with the same result up to rounding."""

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], UNITS), name="kernel")

        def call(self, inputs: Any) -> Any:
            # Each product has another input, or a compiler would do it once.
            return sum(ops.matmul(inputs * (1 + 1e-3 * n), self.kernel) for n in range(products)) / products

    class Shifted(keras.layers.Layer):  # type: ignore[misc]
        """Has a buffer of so many MiB, which each call copies, shifted by one position."""

        def build(self, shape: Any) -> None:
            if mebibytes:
                self.buffer = self.add_weight(shape=(mebibytes << 18,), trainable=False, name="buffer")

        def call(self, inputs: Any) -> Any:
            if mebibytes:
                self.buffer.assign(ops.concatenate([self.buffer[1:], self.buffer[:1]]))
            return inputs

    wide, dense = keras.layers.Dense(UNITS, name="wide"), keras.layers.Dense(10, name="narrow")
    model = keras.Sequential([keras.Input((FEATURES,)), wide, Shifted(name="shifted"), Product(name="product"), dense])
    model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse")
    return model


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(SAMPLES, FEATURES)).astype("float32"), np.zeros((SAMPLES, 10), "float32")


def plain(**_: Any) -> Any:
    return _model(1, 0), *_data()


def twice(**_: Any) -> Any:
    return _model(2, 0), *_data()


def copied(**_: Any) -> Any:
    return _model(1, 96), *_data()
