"""Stops soon: after two epochs without a better validation loss.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 40)).astype("float32")
y = rng.normal(size=2000).astype("float32")  # nothing to learn: the validation loss gets worse
model = keras.Sequential([keras.Input((40,)), layers.Dense(128, activation="relu"), layers.Dense(1)])
model.compile("adam", "mse")
stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True, verbose=1)
history = model.fit(x, y, batch_size=25, epochs=60, validation_split=0.3, callbacks=[stop], verbose=2)
print("stopped after", len(history.history["loss"]), "epochs")
