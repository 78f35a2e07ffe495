"""Data from a generator that never ends; an epoch is a number of steps.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers


def walks(batch_size):
    """Random walks with one jump, and the place of the jump."""
    rng = np.random.default_rng(44)
    while True:
        steps = rng.normal(size=(batch_size, 48)).astype("float32")
        place = rng.integers(4, 44, batch_size)
        steps[np.arange(batch_size), place] += 9
        yield steps.cumsum(axis=1)[..., None], (place / 48).astype("float32")


model = keras.Sequential(
    [
        keras.Input((48, 1)),
        layers.Conv1D(32, 3, activation="relu", padding="same"),
        layers.Conv1D(32, 3, activation="relu", padding="same"),
        layers.Flatten(),
        layers.Dense(1),
    ]
)
model.compile("adam", "huber")
model.fit(walks(32), steps_per_epoch=80, epochs=4, validation_data=walks(32), validation_steps=5)
