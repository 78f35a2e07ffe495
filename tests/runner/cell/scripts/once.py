"""A loop of one's own over what can be read once, made anew for each of its epochs."""

import keras
import numpy as np

import keras_matrix

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
xs, ys = np.random.rand(3, 16, 4), np.random.rand(3, 16, 1)
for _ in range(9):
    for x, y in keras_matrix.steps(zip(xs, ys, strict=True)):
        model.train_on_batch(x, y)
