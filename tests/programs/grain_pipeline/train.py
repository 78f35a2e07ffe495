"""A pipeline of Grain: a map data set, shuffled, transformed and batched.

Written for JAX, TensorFlow and PyTorch.
"""

import grain.python as grain
import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(6)
signals = rng.normal(size=(2000, 60)).astype("float32").cumsum(axis=1)
rises = (signals[:, -1] > signals[:, 30]).astype("int32")


def prepare(index):
    signal = signals[index]
    return (signal - signal.mean())[:, None], rises[index]


data = grain.MapDataset.range(2000).shuffle(seed=1).map(prepare).batch(40, drop_remainder=True)

model = keras.Sequential(
    [
        keras.Input((60, 1)),
        layers.Conv1D(16, 5, activation="relu"),
        layers.MaxPooling1D(2),
        layers.Conv1D(16, 5, activation="relu"),
        layers.GlobalMaxPooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(data.to_iter_dataset(), epochs=5)
