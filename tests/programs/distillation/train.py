"""A small network learns from a large one: the loss is written in `compute_loss`.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers, ops


class Pupil(keras.Model):
    def __init__(self, small, large, **kwargs):
        super().__init__(**kwargs)
        self.small, self.large = small, large
        self.large.trainable = False

    def call(self, x, training=None):
        return self.small(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        own = super().compute_loss(x, y, y_pred, sample_weight, training)
        wise = ops.softmax(self.large(x, training=False) / 3)
        distance = ops.mean(ops.categorical_crossentropy(wise, y_pred / 3, from_logits=True))
        return 0.3 * own + 0.7 * distance


def network(*widths):
    return keras.Sequential(
        [keras.Input((32,)), *(layers.Dense(width, activation="relu") for width in widths), layers.Dense(4)]
    )


rng = np.random.default_rng(0)
x = rng.normal(size=(2400, 32)).astype("float32")
y = np.argmax(x[:, :4] + np.abs(x[:, 4:8]), axis=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

teacher = network(256, 256)
teacher.compile("adam", loss, metrics=["accuracy"])
teacher.fit(x, y, epochs=2, batch_size=64, verbose=2)

pupil = Pupil(network(32), teacher)
pupil.compile("adam", loss, metrics=["accuracy"])
pupil.fit(x, y, epochs=6, batch_size=32, verbose=2)
