"""A loop of one's own without a data set: each step is a context."""

import keras
import numpy as np

import keras_matrix

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.random.rand(16, 4), np.random.rand(16, 1)
while True:
    with keras_matrix.step():
        model.train_on_batch(x, y)
