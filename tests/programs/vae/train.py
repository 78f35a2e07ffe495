"""A variational autoencoder of short wave forms; no targets, the loss is the model's own.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers, ops


class Sample(layers.Layer):
    """Draws a point around a mean and adds the divergence to the losses."""

    def __init__(self, weight, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        divergence = -0.5 * ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)
        self.add_loss(self.weight * ops.mean(divergence))
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.Sequential(
            [
                layers.Conv1D(16, 5, strides=2, padding="same", activation="relu"),
                layers.Conv1D(32, 5, strides=2, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
            ]
        )
        self.mean = layers.Dense(2)
        self.log_variance = layers.Dense(2)
        self.sample = Sample(0.001)
        self.outer = keras.Sequential(
            [
                layers.Dense(64, activation="relu"),
                layers.Dense(width // 4 * 32, activation="relu"),
                layers.Reshape((width // 4, 32)),
                layers.Conv1DTranspose(16, 5, strides=2, padding="same", activation="relu"),
                layers.Conv1DTranspose(1, 5, strides=2, padding="same"),
            ]
        )

    def call(self, waves):
        hidden = self.inner(waves)
        code = self.sample([self.mean(hidden), self.log_variance(hidden)])
        rebuilt = self.outer(code)
        self.add_loss(ops.mean(ops.square(waves - rebuilt)))
        return rebuilt


rng = np.random.default_rng(5)
time = np.linspace(0, 2 * np.pi, 64)
speeds = rng.uniform(1, 4, (3000, 1))
starts = rng.uniform(0, np.pi, (3000, 1))
waves = np.sin(speeds * time + starts).astype("float32")[..., None]

model = Autoencoder(64)
model.compile(optimizer=keras.optimizers.Adam(2e-3))
history = model.fit(waves, epochs=8, batch_size=100, validation_split=0.1)
print("loss from", history.history["loss"][0], "to", history.history["loss"][-1])
codes = model.predict(waves[:10])
print("rebuilt", codes.shape)
