"""A loop of one's own with JAX: the state goes in and out of a compiled function.

Written for JAX.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import keras_matrix

rng = np.random.default_rng(4)
x = rng.normal(size=(6400, 30)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")
batches = [(x[start : start + 32], y[start : start + 32]) for start in range(0, 6400, 32)]
model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(model.trainable_variables)
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def loss_of(weights, others, x, y):
    logits, others = model.stateless_call(weights, others, x, training=True)
    return loss_function(y, logits), others


@jax.jit
def train_step(state, x, y):
    weights, others, slots = state
    (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, others, x, y)
    weights, slots = optimizer.stateless_apply(slots, gradients, weights)
    return loss, (weights, others, slots)


state = tuple(
    [variable.value for variable in variables]
    for variables in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
)
for epoch in range(5):
    for batch in keras_matrix.steps(batches):
        loss, state = train_step(state, *batch)
    print(f"epoch {epoch + 1}: {float(loss):.3f}")
for variable, value in zip(model.trainable_variables, state[0], strict=True):
    variable.assign(value)
