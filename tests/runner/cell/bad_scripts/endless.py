"""A program whose data never ends, so that plain Keras never ends its first epoch."""

from collections.abc import Iterator

import keras
import numpy as np


def batches() -> Iterator[tuple[object, object]]:
    while True:
        yield np.random.rand(8, 4), np.random.rand(8, 1)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches())
