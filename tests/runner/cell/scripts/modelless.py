"""A loop without a model of Keras's: what it trains is not known."""

import keras_matrix

for _ in keras_matrix.steps(iter(range(100))):
    sum(range(10_000))
