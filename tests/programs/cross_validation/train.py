"""Five models on five parts of the data: `fit` in a loop, in a function, with weights of the classes.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers

FOLDS = 5


def make_model():
    model = keras.Sequential(
        [keras.Input((16,)), layers.Dense(64, activation="relu"), layers.Dense(1, activation="sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.Recall(name="recall")])
    return model


def train_fold(number, x, y):
    part = np.arange(len(x)) % FOLDS == number
    rare = y[~part].mean()
    model = make_model()
    model.fit(x[~part], y[~part], batch_size=32, epochs=3, class_weight={0: rare, 1: 1 - rare}, verbose=0)
    return model.evaluate(x[part], y[part], verbose=0, return_dict=True)["recall"]


rng = np.random.default_rng(2)
x = rng.normal(size=(3000, 16)).astype("float32")
y = (x[:, 0] + x[:, 1] + rng.normal(0, 0.5, 3000) > 2.2).astype("float32")
recalls = [train_fold(number, x, y) for number in range(FOLDS)]
print("recall", np.mean(recalls), "+-", np.std(recalls))
