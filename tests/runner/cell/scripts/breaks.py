"""A loop of one's own that is left early in each of its epochs, by a program that catches everything."""

import keras
import numpy as np

import keras_matrix

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
batches = [(np.random.rand(16, 4), np.random.rand(16, 1)) for _ in range(8)]
while True:
    try:
        loop = keras_matrix.steps(batches)
        assert len(loop) == 8
        for number, (x, y) in enumerate(loop):
            if number == 6:
                break
            model.train_on_batch(x, y)
    except:  # noqa: E722
        print("a program that catches everything")
