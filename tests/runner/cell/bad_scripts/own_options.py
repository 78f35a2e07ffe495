"""A program that sets its own backend before it imports Keras, and its own seed, precision and device."""

import os

os.environ["KERAS_BACKEND"] = "numpy"

import keras
import numpy as np

keras.utils.set_random_seed(1234)
keras.config.set_dtype_policy("mixed_bfloat16")
with keras.device("cpu"):  # under "cpu:0" Keras 3.15 has no gradients on PyTorch
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.random.rand(64, 4), np.random.rand(64, 1))
