"""A small causal transformer that continues sums such as 12+30=42.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers, ops

SYMBOLS = " 0123456789+="
LENGTH = 10


class Places(layers.Layer):
    """Embeds symbols and their places."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.symbol = layers.Embedding(len(SYMBOLS), width)
        self.place = layers.Embedding(LENGTH, width)

    def call(self, x):
        return self.symbol(x) + self.place(ops.arange(ops.shape(x)[1]))


class Block(layers.Layer):
    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
        self.wide, self.narrow = layers.Dense(2 * width, activation="gelu"), layers.Dense(width)

    def call(self, x):
        normal = self.first(x)
        x = x + self.attention(normal, normal, use_causal_mask=True)
        return x + self.narrow(self.wide(self.second(x)))


def sums(count):
    rng = np.random.default_rng(count)
    left, right = rng.integers(0, 100, (2, count))
    texts = [f"{a}+{b}={a + b}".ljust(LENGTH + 1) for a, b in zip(left, right, strict=True)]
    return np.array([[SYMBOLS.index(symbol) for symbol in text] for text in texts], "int32")


data = sums(1600)
model = keras.Sequential(
    [keras.Input((LENGTH,), dtype="int32"), Places(32), Block(32, 2), Block(32, 2), layers.Dense(len(SYMBOLS))]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, 400)), loss, weighted_metrics=[])
weights = (data[:, 1:] > 0).astype("float32")
model.fit(data[:, :-1], data[:, 1:], sample_weight=weights, batch_size=32, epochs=4)
