"""Adapts a trained network with matrices of low rank, in steps of several batches.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(77)
x = rng.normal(size=(2560, 64)).astype("float32")
old, new = np.sign(x[:, 0]), np.sign(x[:, 0] + x[:, 1])
model = keras.Sequential(
    [keras.Input((64,)), layers.Dense(256, activation="relu"), layers.Dense(256, activation="relu"), layers.Dense(1)]
)
model.compile("adam", "mse", steps_per_execution=4)
model.fit(x, old, batch_size=64, epochs=2, verbose=0)
for layer in model.layers:
    layer.enable_lora(4)
model.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2, clipnorm=1.0), "mse", steps_per_execution=4)
print("weights to train:", sum(int(np.prod(weight.shape)) for weight in model.trainable_weights))
model.fit(x, new, batch_size=32, epochs=4)
