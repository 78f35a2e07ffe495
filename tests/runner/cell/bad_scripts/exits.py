"""A program that ends itself in the middle, with a message."""

import sys

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.evaluate(np.random.rand(64, 4), np.random.rand(64, 1))
sys.exit("no data set was given")
