"""JAX: measured epochs of a resident feed with every implicit transfer between host and device forbidden."""

from __future__ import annotations

import sys

import jax
import keras
import numpy as np

from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.batches import counted_feed
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.phases import fit_epochs


def main(feed: str) -> None:
    """Train, with transfers forbidden within each step of the second call of fit."""
    adapter = backends.load("jax")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile("adam", "mse", metrics=["mae"])
    given = [(np.full((16, 8), i, "float32"), np.full((16, 4), i, "float32")) for i in range(3)]
    feeder = adapter.feeder(given) if feed == "device_resident" else lambda needed: counted_feed(given)
    fit_epochs(model, feeder(2).source, adapter, Stretch(2, 1))
    step = model.train_function

    def guarded(*arguments: object) -> object:
        with jax.transfer_guard("disallow"):
            return step(*arguments)

    model.train_function = guarded
    log = fit_epochs(model, feeder(8).source, adapter, Stretch(4, 2))
    print(len(log.times_s))


if __name__ == "__main__":
    main(sys.argv[1])
