"""A loop of one's own over a data set of batches, which takes a while to open."""

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

import keras_matrix


class Batches(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        time.sleep(0.1)
        return super().__iter__()


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
batches = Batches((np.random.rand(16, 4), np.random.rand(16, 1)) for _ in range(5))

for x, y in keras_matrix.steps(batches):
    model.train_on_batch(x, y)
raise RuntimeError("the program ends with its measured loop")
