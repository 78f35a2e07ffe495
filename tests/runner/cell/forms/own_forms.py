"""Forms of `build` that plain `fit` takes, as a user would write them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import keras_matrix

X = np.random.default_rng(0).standard_normal((50, 4), dtype=np.float32)
Y = X[:, :1].copy()


def dense() -> Any:
    """Return a small compiled model."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Pairs(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of ten."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[10 * index :][:10], Y[10 * index :][:10]


class OwnFit(keras.Model):  # type: ignore[misc]
    """Its `fit` looks at the arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def fit(self, x: Any = None, y: Any = None, **named: Any) -> Any:
        if not isinstance(x, np.ndarray | Pairs):
            raise TypeError(f"fit got {type(x)}")
        return super().fit(x, y, **named)


def own_fit(source: bool = False) -> Any:
    """Return a model with its own `fit`."""
    model = OwnFit()
    model.compile("sgd", "mse")
    return (model, Pairs()) if source else (model, X, Y, np.ones(50))


def called() -> Any:
    """Return a call of `fit` whose callback wants to stop, whose batches do not fill the samples."""
    stop = keras.callbacks.EarlyStopping(patience=0, min_delta=1e9)
    y = (Y > 0).astype("int32")
    named = {"class_weight": {0: 1.0, 1: 2.0}, "callbacks": [stop], "validation_split": 0.2, "initial_epoch": 1}
    return keras_matrix.Fit(dense(), X, y, batch_size=8, epochs=9, **named)


def misspelt() -> Any:
    """Return a call with an argument that `fit` does not have."""
    return keras_matrix.Fit(dense(), X, Y, calbacks=[])


class Refusing(keras.layers.Layer):  # type: ignore[misc]
    """Fails when it is called to train."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            raise LookupError("no such column")
        return inputs


def fails() -> Any:
    """Return a model whose layer fails in the step."""
    model = keras.Sequential([keras.Input((4,)), Refusing(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, X, Y
