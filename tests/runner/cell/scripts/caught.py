"""A program that catches the error of its call of fit."""

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
while True:
    try:
        model.fit(np.ones((8, 4)), np.ones((9, 1)))
    except Exception as error:  # noqa: BLE001
        print(error)
