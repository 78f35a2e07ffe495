"""A loop of JAX's kind: it keeps the weights as arrays of its own. Elsewhere it trains the model's weights."""

import keras
import numpy as np

import keras_matrix

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.random.rand(16, 4).astype("float32"), np.random.rand(16, 1).astype("float32")


def stateless_steps() -> None:
    import jax

    def loss(weights: object) -> object:
        outputs, _ = model.stateless_call(weights, [], x)
        return ((outputs - y) ** 2).mean()

    weights = [variable.value for variable in model.trainable_variables]
    for _ in keras_matrix.steps(list(range(5))):
        weights = [weight - 0.01 * slope for weight, slope in zip(weights, jax.grad(loss)(weights), strict=True)]


if keras.backend.backend() == "jax":
    stateless_steps()
for _ in keras_matrix.steps(list(range(5))):
    model.train_on_batch(x, y)
