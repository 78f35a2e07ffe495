"""Tries a few widths and keeps the best one: several models, `fit` in a method of a class.

Written for JAX, TensorFlow and PyTorch.
"""

import itertools
import json

import keras
import numpy as np
from keras import layers


class Trial:
    def __init__(self, width, rate):
        self.width, self.rate = width, rate

    def model(self):
        inputs = keras.Input((10,))
        hidden = layers.Dense(self.width, activation="swish")(inputs)
        model = keras.Model(inputs, layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(self.rate), "mae")
        return model

    def score(self, x, y):
        history = self.model().fit(x, y, epochs=2, batch_size=16, validation_split=0.25, verbose=0)
        return min(history.history["val_loss"])


def main():
    rng = np.random.default_rng(9)
    x = rng.uniform(-1, 1, (1600, 10)).astype("float32")
    y = (x**2).sum(axis=1) + rng.normal(0, 0.1, 1600)
    scores = {}
    for width, rate in itertools.product((16, 64), (1e-3, 1e-2)):
        scores[f"{width}/{rate}"] = Trial(width, rate).score(x, y)
        keras.backend.clear_session()
    with open("scores.json", "w") as file:
        json.dump(scores, file, indent=1)
    print("best:", min(scores, key=scores.get))


if __name__ == "__main__":
    main()
