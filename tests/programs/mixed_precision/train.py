"""Computes in bfloat16 and keeps its weights in float32.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers

keras.mixed_precision.set_global_policy("mixed_bfloat16")
keras.utils.set_random_seed(1)

x = np.random.normal(size=(2560, 64)).astype("float32")
y = x[:, :8].argmax(axis=1)
inputs = keras.Input((64,))
hidden = layers.Dense(256, activation="gelu")(inputs)
hidden = layers.Dense(256, activation="gelu")(hidden)
outputs = layers.Dense(8, activation="softmax", dtype="float32")(hidden)
model = keras.Model(inputs, outputs)
print("computes in", model.layers[1].compute_dtype, "keeps", model.layers[1].variable_dtype)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=64, epochs=4)
