"""A model as a class with layers of its own, trained in a function.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers, ops


class Mixing(layers.Layer):
    """Mixes first along the patches, then along the channels."""

    def __init__(self, patches, channels, **kwargs):
        super().__init__(**kwargs)
        self.normalize = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.along_patches = [layers.Dense(64, activation="gelu"), layers.Dense(patches)]
        self.along_channels = [layers.Dense(64, activation="gelu"), layers.Dense(channels)]
        self.drop = layers.Dropout(0.1)

    def call(self, x, training=None):
        mixed = ops.transpose(self.normalize[0](x), (0, 2, 1))
        for layer in self.along_patches:
            mixed = layer(mixed)
        x = x + self.drop(ops.transpose(mixed, (0, 2, 1)), training=training)
        mixed = self.normalize[1](x)
        for layer in self.along_channels:
            mixed = layer(mixed)
        return x + mixed


class Mixer(keras.Model):
    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
        self.cut = layers.Conv2D(32, 4, strides=4)
        self.flatten = layers.Reshape((16, 32))
        self.blocks = [Mixing(16, 32) for _ in range(2)]
        self.pool = layers.GlobalAveragePooling1D()
        self.classify = layers.Dense(classes)

    def call(self, images, training=None):
        x = self.flatten(self.cut(images))
        for block in self.blocks:
            x = block(x, training=training)
        return self.classify(self.pool(x))


def train(epochs):
    rng = np.random.default_rng(0)
    images = rng.random((1600, 16, 16, 3), "float32")
    labels = (images[:, :8].mean(axis=(1, 2, 3)) > images[:, 8:].mean(axis=(1, 2, 3))).astype("int32")
    model = Mixer(2)
    model.compile(
        keras.optimizers.AdamW(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(images, labels, epochs=epochs, batch_size=32, validation_split=0.2)
    return history.history["val_accuracy"][-1]


print("validation accuracy", train(4))
