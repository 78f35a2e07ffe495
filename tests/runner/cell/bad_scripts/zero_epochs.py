"""A program that trains nothing on request, then fits two models; its plots go to a screen that is not there."""

import os

import keras
import numpy as np

assert os.environ["MPLBACKEND"] == "Agg", "plt.show() opens no window"
x, y = np.random.rand(64, 4), np.random.rand(64, 1)
models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)]) for units in (1, 2)]
for model in models:
    model.compile("sgd", "mse")
models[0].fit(x, y, epochs=0)
models[0].fit(x, y, epochs=1)
history = models[1].fit(x, np.random.rand(64, 2), epochs=5, batch_size=8)
assert len(history.history["loss"]) == 5, "the history is that of all epochs"
