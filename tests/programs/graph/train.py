"""Finds the groups of people in a random network by passing messages along its edges.

Written for JAX, TensorFlow and PyTorch. The network is part of the model; what is fed
are the numbers of the nodes.
"""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(8)
NODES, GROUPS, FEATURES = 1500, 4, 20
group = rng.integers(0, GROUPS, NODES)
features = rng.normal(size=(NODES, FEATURES)).astype("float32")
features[np.arange(NODES), group] += 1.0
start, end = rng.integers(0, NODES, (2, 20000))
kept = (group[start] == group[end]) | (rng.random(20000) < 0.1)
start, end = start[kept].astype("int32"), end[kept].astype("int32")
print(len(start), "edges")


class Messages(layers.Layer):
    """Mean of the neighbours' values, joined with the node's own."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.prepare = layers.Dense(width, activation="gelu")
        self.update = layers.Dense(width, activation="gelu")
        self.normalize = layers.LayerNormalization()

    def call(self, inputs):
        nodes, start, end = inputs
        messages = ops.take(self.prepare(nodes), start, axis=0)
        total = ops.segment_sum(messages, end, num_segments=NODES)
        count = ops.segment_sum(ops.ones_like(messages[:, :1]), end, num_segments=NODES)
        mean = total / ops.maximum(count, 1.0)
        return self.normalize(self.update(ops.concatenate([nodes, mean], axis=-1)))


class GraphClassifier(keras.Model):
    def __init__(self, features, start, end):
        super().__init__()
        self.features = ops.convert_to_tensor(features)
        self.start = ops.convert_to_tensor(start)
        self.end = ops.convert_to_tensor(end)
        self.before = layers.Dense(32, activation="gelu")
        self.first = Messages(32)
        self.second = Messages(32)
        self.drop = layers.Dropout(0.3)
        self.after = layers.Dense(GROUPS)

    def call(self, numbers, training=False):
        x = self.before(self.features)
        x = self.first([x, self.start, self.end]) + x
        x = self.second([x, self.start, self.end]) + x
        x = self.drop(ops.take(x, numbers, axis=0), training=training)
        return self.after(x)


order = rng.permutation(NODES).astype("int32")
train, test = order[:900], order[900:]
model = GraphClassifier(features, start, end)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
)
stop = keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=6, restore_best_weights=True)
model.fit(train, group[train], batch_size=128, epochs=12, validation_split=0.15, callbacks=[stop])
loss, accuracy = model.evaluate(test, group[test], verbose=0)
print(f"accuracy on unseen people: {accuracy:.3f}")
