"""The model."""

import keras
from keras import layers


def forecaster(hours, units):
    inputs = keras.Input((hours, 2))
    x = layers.GRU(units, return_sequences=True)(inputs)
    x = layers.GRU(units)(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(1e-3), "mae")
    return model
