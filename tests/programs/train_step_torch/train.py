"""A training step of one's own for PyTorch: gradients are clipped by PyTorch, mixed-up examples are trained on.

Written for PyTorch.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch


class MixedUp(keras.Model):
    def train_step(self, data):
        x, y = data
        share = float(np.random.beta(0.4, 0.4))
        order = torch.randperm(x.shape[0])
        x = share * x + (1 - share) * x[order]
        y = share * y + (1 - share) * y[order]
        self.zero_grad()
        predictions = self(x, training=True)
        loss = self.compute_loss(x=x, y=y, y_pred=predictions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(3)
x = rng.normal(size=(1600, 16, 16, 1)).astype("float32")
classes = (x.mean(axis=(1, 2, 3)) > 0).astype("int32")
y = np.eye(2, dtype="float32")[classes]
inputs = keras.Input((16, 16, 1))
hidden = keras.layers.Conv2D(16, 3, strides=2, activation="relu")(inputs)
hidden = keras.layers.Flatten()(hidden)
model = MixedUp(inputs, keras.layers.Dense(2, activation="softmax")(hidden))
model.compile("adam", "categorical_crossentropy", metrics=["categorical_accuracy"])
model.fit(x, y, batch_size=32, epochs=6)
