"""A workload whose memory grows so much with the batch that few batch sizes fit; a sample has `megabytes`."""

from __future__ import annotations

from typing import Any

import numpy as np


def wide_samples(megabytes: int = 64, samples: int = 1, **_: Any) -> Any:
    import keras

    width = megabytes * (1 << 18)
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    # Zeros take no memory before they are copied into batches.
    return model, np.zeros((samples, width), "float32"), np.ones((samples, 1), "float32")
