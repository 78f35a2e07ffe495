"""A loop without a model of Keras's: what it trains is not known."""

import keras_matrix

for _ in keras_matrix.steps(list(range(5))):
    sum(range(10_000))
