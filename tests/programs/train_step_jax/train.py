"""A training step of one's own for JAX: noise on the gradients, all state handed in and out.

Written for JAX.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np


class Noisy(keras.Model):
    def loss_and_state(self, weights, other, x, y):
        predictions, other = self.stateless_call(weights, other, x, training=True)
        return self.loss_function(y, predictions), (predictions, other)

    def train_step(self, state, data):
        weights, other, optimizer_state, metric_state = state
        x, y = data
        slope = jax.value_and_grad(self.loss_and_state, has_aux=True)
        (loss, (predictions, other)), gradients = slope(weights, other, x, y)
        gradients = [gradient * 0.5 + jax.numpy.clip(gradient, -0.1, 0.1) * 0.5 for gradient in gradients]
        weights, optimizer_state = self.optimizer.stateless_apply(optimizer_state, gradients, weights)
        split = len(self.loss_mean.variables)
        loss_state = self.loss_mean.stateless_update_state(metric_state[:split], loss)
        hit_state = self.hits.stateless_update_state(metric_state[split:], y, predictions)
        logs = {
            "loss": self.loss_mean.stateless_result(loss_state),
            "hits": self.hits.stateless_result(hit_state),
        }
        return logs, (weights, other, optimizer_state, [*loss_state, *hit_state])

    def prepare(self):
        self.loss_mean = keras.metrics.Mean(name="loss")
        self.hits = keras.metrics.SparseCategoricalAccuracy(name="hits")
        self.loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return self

    @property
    def metrics(self):
        return [self.loss_mean, self.hits]


rng = np.random.default_rng(3)
x = rng.normal(size=(6400, 24)).astype("float32")
y = (np.sin(x[:, :3]).sum(axis=1) > 0).astype("int32")
inputs = keras.Input((24,))
hidden = keras.layers.Dense(128, activation="tanh")(inputs)
hidden = keras.layers.Dense(128, activation="tanh")(hidden)
model = Noisy(inputs, keras.layers.Dense(2)(hidden)).prepare()
model.compile(optimizer="adam")
model.fit(x, y, batch_size=32, epochs=6)
