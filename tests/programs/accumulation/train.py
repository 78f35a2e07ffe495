"""Gradients of four small batches for one step of the optimizer, written in train_step.

Written for TensorFlow and PyTorch.
"""

import keras
import numpy as np
from keras import layers

EVERY = 4
backend = keras.backend.backend()

if backend == "tensorflow":
    import tensorflow as tf

    class Accumulating(keras.Model):
        def prepare(self):
            self.count = tf.Variable(0, trainable=False, dtype=tf.int32)
            self.sums = [tf.Variable(tf.zeros(weight.shape), trainable=False) for weight in self.trainable_variables]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=prediction)
            for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
                total.assign_add(gradient / EVERY)
            self.count.assign_add(1)
            tf.cond(self.count % EVERY == 0, self.update, lambda: None)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, prediction)
            return {metric.name: metric.result() for metric in self.metrics}

        def update(self):
            self.optimizer.apply([tf.identity(total) for total in self.sums], self.trainable_variables)
            for total in self.sums:
                total.assign(tf.zeros_like(total))

elif backend == "torch":
    import torch

    class Accumulating(keras.Model):
        def prepare(self):
            self.count = 0

        def train_step(self, data):
            x, y = data
            prediction = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=prediction)
            (loss / EVERY).backward()
            self.count += 1
            if self.count % EVERY == 0:
                weights = list(self.trainable_weights)
                with torch.no_grad():
                    self.optimizer.apply([weight.value.grad for weight in weights], weights)
                self.zero_grad()
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, prediction)
            return {metric.name: metric.result() for metric in self.metrics}

else:
    raise SystemExit("This program needs TensorFlow or PyTorch.")

rng = np.random.default_rng(1)
x = rng.normal(size=(4000, 40)).astype("float32")
y = np.argmax(x @ rng.normal(size=(40, 6)), axis=1)

inputs = keras.Input((40,))
hidden = inputs
for units in (128, 128, 64):
    hidden = layers.BatchNormalization()(layers.Dense(units, activation="relu")(hidden))
model = Accumulating(inputs, layers.Dense(6, activation="softmax")(hidden))
model.prepare()
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(x, y, batch_size=20, epochs=4)
print("done after", int(model.count), "batches")
