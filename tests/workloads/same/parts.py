"""What the program and the workload have in common: a model and its data."""

import keras
import numpy as np
from keras import layers

ARGUMENTS = {"batch_size": 32, "verbose": 0}


def parts():
    """Return a compiled model, inputs and targets."""
    rng = np.random.default_rng(0)
    x = rng.random((1600, 16, 16, 3), "float32")
    y = (x[:, :8].mean(axis=(1, 2, 3)) > x[:, 8:].mean(axis=(1, 2, 3))).astype("int32")
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model, x, y
