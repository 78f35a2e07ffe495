"""The model and the training of `twice.py`."""

import keras


def classifier() -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def train(model: keras.Model, x: object, y: object) -> None:
    model.fit(x, y, epochs=1, verbose=0)
