"""Learns an embedding in which two noisy views of the same sound are near each other.

Written for JAX, TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers, ops

CLASSES = 12


class Views(keras.utils.PyDataset):
    """Batches of anchors and positives: one of each class, two examples of it."""

    def __init__(self, sounds, labels, batches, **kwargs):
        super().__init__(**kwargs)
        self.sounds = sounds
        self.of_class = [np.flatnonzero(labels == label) for label in range(CLASSES)]
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        chosen = np.array([rng.choice(members, 2, replace=False) for members in self.of_class])
        anchors, positives = self.sounds[chosen[:, 0]], self.sounds[chosen[:, 1]]
        return np.stack([anchors, positives]).astype("float32"), np.arange(CLASSES)


class Embedder(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body = keras.Sequential(
            [
                layers.Reshape((128, 1)),
                layers.Conv1D(32, 7, strides=2, activation="relu"),
                layers.Conv1D(64, 5, strides=2, activation="relu"),
                layers.GlobalAveragePooling1D(),
                layers.Dense(16),
                layers.UnitNormalization(),
            ]
        )

    def call(self, views):
        return ops.stack([self.body(views[0]), self.body(views[1])])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        likeness = ops.einsum("ae,pe->ap", y_pred[0], y_pred[1]) / 0.2
        return super().compute_loss(x, y, likeness, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(0)
labels = rng.integers(0, CLASSES, 2400)
time = np.linspace(0, 1, 128)
sounds = np.sin(2 * np.pi * (3 + 2 * labels[:, None]) * time + rng.uniform(0, 6, (2400, 1)))
sounds += rng.normal(0, 0.3, sounds.shape)

model = Embedder()
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
history = model.fit(Views(sounds, labels, 150), epochs=5)
points = ops.convert_to_numpy(model.body(sounds[:500].astype("float32")))
near = np.argsort(-points @ points.T, axis=1)[:, 1]
print("nearest neighbour has the same class:", np.mean(labels[near] == labels[:500]))
with open("losses.txt", "w") as file:
    file.write("\n".join(str(loss) for loss in history.history["loss"]))
