"""A workload of your own. In a matrix file: workload: my_workload:build, params: {width: 256}."""

import keras
import numpy as np


def build(width: int = 64, features: int = 32):
    """Return a compiled model, and the inputs and targets it is measured on."""
    layers = [keras.Input((features,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer="adam", loss="mse")
    rng = np.random.default_rng(0)
    x = rng.random((1000, features), dtype=np.float32)
    y = x.sum(axis=1, keepdims=True)
    return model, x, y
