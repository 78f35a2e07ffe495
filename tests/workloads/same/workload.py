"""The workload."""

from parts import ARGUMENTS, parts

import keras_matrix


def build():
    """Return the call of the program."""
    model, x, y = parts()
    return keras_matrix.Fit(model, x=x, y=y, **ARGUMENTS)
