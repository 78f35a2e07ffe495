"""A program that trains in a thread."""

import threading

import keras
import numpy as np


def train() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.random.rand(64, 4), np.random.rand(64, 1))


thread = threading.Thread(target=train)
thread.start()
thread.join()
