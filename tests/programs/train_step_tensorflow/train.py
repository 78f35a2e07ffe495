"""A training step of one's own for TensorFlow: sharpness-aware minimisation, two gradients a step.

Written for TensorFlow.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf


class Sharpness(keras.Model):
    radius = 0.05

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients) + 1e-12
        moves = [gradient * (self.radius / norm) for gradient in gradients]
        for variable, move in zip(self.trainable_variables, moves, strict=True):
            variable.assign_add(move)
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predictions)
        gradients = tape.gradient(loss, self.trainable_variables)
        for variable, move in zip(self.trainable_variables, moves, strict=True):
            variable.assign_sub(move)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(3)
x = rng.normal(size=(3200, 24)).astype("float32")
y = (np.sin(x[:, :3]).sum(axis=1) > 0).astype("int32")
inputs = keras.Input((24,))
hidden = keras.layers.Dense(96, activation="tanh")(inputs)
hidden = keras.layers.Dense(96, activation="tanh")(hidden)
model = Sharpness(inputs, keras.layers.Dense(2, activation="softmax")(hidden))
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=32, epochs=6)
