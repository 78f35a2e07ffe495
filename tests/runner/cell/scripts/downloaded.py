"""A program whose data set was downloaded before; nobody answers at that address."""

import keras
import numpy as np

path = keras.utils.get_file("numbers.npy", origin="http://127.0.0.1:9/numbers.npy")
numbers = np.load(path)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numbers, numbers[:, :1], epochs=2, verbose=0)
