"""Rows with words and numbers: layers that learn their tables first, and rare rows that count more.

Written for JAX, TensorFlow and PyTorch; TensorFlow must be installed for tables of words.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(31)
COUNT = 2400
rows = {
    "age": rng.integers(18, 90, (COUNT, 1)).astype("float32"),
    "income": rng.lognormal(10, 0.5, (COUNT, 1)).astype("float32"),
    "city": rng.choice(["Bern", "Lugano", "Basel", "Chur"], (COUNT, 1)),
    "job": rng.choice(["cook", "nurse", "clerk", "painter", "pilot"], (COUNT, 1)),
}
bought = ((rows["age"] < 40) & (rows["city"] == "Bern")).astype("float32")[:, 0]

learnt = {}
for name, column in rows.items():
    if column.dtype == "float32":
        learnt[name] = layers.Normalization()
    else:
        learnt[name] = layers.StringLookup(output_mode="one_hot")
    learnt[name].adapt(column)


def encode(row, label):
    parts = [learnt[name](row[name]) for name in rows]
    return tf.concat([tf.cast(part, tf.float32) for part in parts], axis=1), label


data = tf.data.Dataset.from_tensor_slices((rows, bought)).shuffle(COUNT).batch(32)
data = data.map(encode, num_parallel_calls=2).prefetch(4)
width = next(iter(data))[0].shape[1]
model = keras.Sequential(
    [
        keras.Input((width,)),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.3),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
model.fit(data, epochs=4, class_weight={0: 1.0, 1: 6.0})
