"""The layers of the models."""

import keras


def hidden(width):
    """Return a hidden layer."""
    return keras.layers.Dense(width, activation="tanh")
