"""A loop of one's own with TensorFlow's tape.

Written for TensorFlow.
"""

import keras
import numpy as np
import tensorflow as tf

import keras_matrix

rng = np.random.default_rng(4)
x = rng.normal(size=(3200, 30)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(3200).batch(32)
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(1)])
loss_function = keras.losses.BinaryCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(1e-3)
accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_function(y[:, None], logits)
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply(gradients, model.trainable_weights)
    accuracy.update_state(y[:, None], logits)
    return loss


for epoch in range(5):
    accuracy.reset_state()
    for batch in keras_matrix.steps(data):
        loss = train_step(*batch)
    print(f"epoch {epoch + 1}: loss {float(loss):.3f}, accuracy {float(accuracy.result()):.3f}")
