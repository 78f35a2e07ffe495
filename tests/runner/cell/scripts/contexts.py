"""A loop of one's own without a data set: each step is a context, and something is done between two of them."""

import time

import keras
import numpy as np

import keras_matrix

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y, step = np.random.rand(16, 4), np.random.rand(16, 1), 0
while True:
    try:
        with keras_matrix.step():
            model.train_on_batch(x, y)
    except:  # noqa: E722
        print("a program that catches everything")
    step += 1
    if step % 4 == 0:
        time.sleep(0.1)
