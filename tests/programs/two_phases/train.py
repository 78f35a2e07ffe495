"""Learns patterns of one kind, then takes the network over to another kind in two phases.

Written for JAX, TensorFlow and PyTorch: first only the new head is trained, then the
whole network with a small learning rate.
"""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(99)


def textures(count, frequencies):
    rng = np.random.default_rng(len(frequencies))
    labels = rng.integers(0, len(frequencies), count)
    rows, columns = np.mgrid[0:32, 0:32] / 32
    pictures = np.empty((count, 32, 32, 3), "float32")
    for i, label in enumerate(labels):
        f, g = frequencies[label]
        wave = np.sin(2 * np.pi * (f * rows + g * columns) + rng.uniform(0, 6))
        pictures[i] = wave[..., None] + rng.normal(0, 0.5, (32, 32, 3))
    return pictures, labels


def make_base():
    x = inputs = keras.Input((32, 32, 3))
    for filters in (16, 32, 64):
        x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D(2)(x)
    return keras.Model(inputs, x, name="base")


base = make_base()
old_x, old_y = textures(800, [(1, 0), (0, 1), (3, 3), (5, 1), (1, 5), (7, 0)])
first = keras.Sequential([base, layers.GlobalAveragePooling2D(), layers.Dense(6, activation="softmax")])
first.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
print("Pretraining")
first.fit(old_x, old_y, epochs=2, batch_size=40, verbose=2)

new_x, new_y = textures(600, [(2, 2), (4, 0), (0, 6)])
base.trainable = False
inputs = keras.Input((32, 32, 3))
x = layers.RandomFlip("horizontal")(inputs)
x = base(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.2)(x)
model = keras.Model(inputs, layers.Dense(3)(x))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, metrics=["accuracy"])
print("Only the head:", len(model.trainable_weights), "weights")
model.fit(new_x, new_y, epochs=3, batch_size=20, validation_split=0.2)

base.trainable = True
model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=loss, metrics=["accuracy"])
print("The whole network:", len(model.trainable_weights), "weights")
checkpoint = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
model.fit(new_x, new_y, epochs=4, batch_size=20, validation_split=0.2, callbacks=[checkpoint])
model.save("final.keras")
