"""Denoising diffusion on tiny pictures of stripes, with averaged weights.

Written for JAX, TensorFlow and PyTorch. The optimizer holds a moving average of the
weights; a callback puts it in for validation and a second one draws samples.
"""

import math

import keras
import numpy as np
from keras import layers, ops

SIZE = 12


def stripes(count):
    rng = np.random.default_rng(2)
    angle = rng.uniform(0, math.pi, (count, 1, 1))
    phase = rng.uniform(0, 2 * math.pi, (count, 1, 1))
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    wave = np.sin(0.9 * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    return wave[..., None].astype("float32")


def unet(width):
    picture = keras.Input((SIZE, SIZE, 1))
    level = keras.Input((1,))
    embedding = layers.Dense(width, activation="silu")(level)
    embedding = layers.Dense(width)(embedding)
    embedding = layers.Reshape((1, 1, width))(embedding)

    x = layers.Conv2D(width, 3, padding="same")(picture)
    x = layers.Add()([x, layers.UpSampling2D(SIZE)(embedding)])
    skip = x = layers.Activation("silu")(x)
    x = layers.Conv2D(width * 2, 3, strides=2, padding="same")(x)
    x = layers.GroupNormalization(4)(x)
    x = layers.Activation("silu")(x)
    x = layers.Conv2D(width * 2, 3, padding="same", activation="silu")(x)
    x = layers.UpSampling2D()(x)
    x = layers.Concatenate()([x, skip])
    x = layers.Conv2D(width, 3, padding="same", activation="silu")(x)
    noise = layers.Conv2D(1, 3, padding="same", kernel_initializer="zeros")(x)
    return keras.Model([picture, level], noise)


class Diffusion(keras.Model):
    def __init__(self, network, **kwargs):
        super().__init__(**kwargs)
        self.network = network
        self.seeds = keras.random.SeedGenerator(7)

    def rates(self, level):
        angle = level * (math.pi / 2)
        return ops.cos(angle)[:, :, None, None], ops.sin(angle)[:, :, None, None]

    def call(self, pictures):
        count = ops.shape(pictures)[0]
        level = keras.random.uniform((count, 1), 0.02, 0.98, seed=self.seeds)
        noise = keras.random.normal((count, SIZE, SIZE, 1), seed=self.seeds)
        signal_rate, noise_rate = self.rates(level)
        guess = self.network([signal_rate * pictures + noise_rate * noise, level])
        return guess - noise

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))

    def draw(self, count, steps=5):
        pictures = np.random.normal(size=(count, SIZE, SIZE, 1)).astype("float32")
        for step in range(steps):
            level = np.full((count, 1), 0.98 - 0.96 * step / steps, "float32")
            after = np.full((count, 1), 0.98 - 0.96 * (step + 1) / steps, "float32")
            noise = ops.convert_to_numpy(self.network([pictures, level]))
            signal, rate = (ops.convert_to_numpy(r) for r in self.rates(ops.convert_to_tensor(level)))
            clean = (pictures - rate * noise) / signal
            signal, rate = (ops.convert_to_numpy(r) for r in self.rates(ops.convert_to_tensor(after)))
            pictures = signal * clean + rate * noise
        return pictures


class Samples(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        np.save(f"samples_{epoch:02d}.npy", self.model.draw(4))


model = Diffusion(unet(16))
model.compile(keras.optimizers.AdamW(1e-3, use_ema=True, ema_momentum=0.99))
pictures = stripes(1200)
model.fit(
    pictures[:1000],
    validation_data=(pictures[1000:],),
    epochs=5,
    batch_size=50,
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True), Samples()],
)
print("mean square of a sample:", float((model.draw(8) ** 2).mean()))
