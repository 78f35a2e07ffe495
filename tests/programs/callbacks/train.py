"""Most of the callbacks that Keras has, and two of one's own, one of them after each batch.

Written for JAX, TensorFlow and PyTorch.
"""

import time

import keras
import numpy as np
from keras import layers


class Timed(keras.callbacks.Callback):
    """Prints the slowest batch of each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.slowest = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.slowest = max(self.slowest, time.perf_counter() - self.begun)

    def on_epoch_end(self, epoch, logs=None):
        print(f" slowest batch of epoch {epoch + 1}: {self.slowest * 1000:.1f} ms")


class Confusion(keras.callbacks.Callback):
    """Evaluates on data of its own."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def on_epoch_end(self, epoch, logs=None):
        guess = self.model.predict(self.x, verbose=0).argmax(axis=1)
        table = np.zeros((3, 3), int)
        np.add.at(table, (self.y, guess), 1)
        print(table)


rng = np.random.default_rng(17)
x = rng.normal(size=(2400, 20)).astype("float32")
y = np.digitize(x[:, 0] + x[:, 1] ** 2, [0.3, 1.2])
model = keras.Sequential(
    [
        keras.Input((20,)),
        layers.Dense(64, activation="relu"),
        layers.Dropout(0.2),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    keras.callbacks.ModelCheckpoint("checkpoints/{epoch:02d}-{val_loss:.2f}.keras"),
    keras.callbacks.CSVLogger("log.csv"),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    keras.callbacks.ReduceLROnPlateau(patience=2, verbose=1),
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.TerminateOnNaN(),
    keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(sorted(logs))),
    Timed(),
    Confusion(x[:300], y[:300]),
]
model.fit(x, y, batch_size=32, epochs=5, validation_split=0.2, callbacks=callbacks)
