"""Workloads that return a source of batches for `fit`; each is `tests.workloads.piped:NAME` in a matrix."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, BATCH, BATCHES = 4, 8, 6
PASSES_NAME = "passes.txt"  # in the cell's folder, which is its working folder


def model(**options: Any) -> Any:
    import keras

    made = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    made.compile(**({"optimizer": keras.optimizers.Adam(0.01), "loss": "mse"} | options))
    return made


def batch(index: int, samples: int = BATCH) -> tuple[Any, Any]:
    rng = np.random.default_rng(index)
    return rng.random((samples, FEATURES), "float32"), rng.random((samples, 1), "float32")


def batches(last: int = BATCH, sleep_s: float = 0.0, **options: Any) -> Any:
    """Return a PyDataset whose last batch of a pass has `last` samples, and which notes the end of each pass."""
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return BATCHES

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            time.sleep(sleep_s)
            return batch(index, last if index == BATCHES - 1 else BATCH)

        def on_epoch_end(self) -> None:
            with Path(PASSES_NAME).open("a") as file:
                file.write("pass\n")

    return Batches(**options)


def plain() -> Any:
    return model(), batches()


def sleeping(sleep_ms: int) -> Any:
    return model(), batches(sleep_s=sleep_ms / 1000)


def threads() -> Any:
    return model(), batches(last=3, workers=2, max_queue_size=3)


def partial() -> Any:
    return model(), batches(last=3)


def with_files(path: str) -> Any:
    return model(), batches(), {"files": [path]}


def bad_samples() -> Any:
    """Report two samples as replaced, one of them twice, as the workers of a pipeline do."""
    path = Path(os.environ["KERAS_MATRIX_BAD_SAMPLES"]) / "bad_samples.txt"
    path.write_text("a/1.jpg\nb/2.jpg\na/1.jpg\n", encoding="utf-8")
    return plain()


def generator() -> Any:
    return model(), (batch(index) for index in range(BATCHES))


def arrays() -> Any:
    return model(), *batch(0, 4 * BATCH)


def unhooked() -> Any:
    """Raise an error if `fit` gets a callback with a hook for batches, or a step that is not Keras's own."""
    import keras

    class Checked(keras.Sequential):  # type: ignore[misc]
        def fit(self, x: Any = None, callbacks: Any = (), **named: Any) -> Any:
            hooks = [
                one
                for one in callbacks
                if type(one).on_train_batch_end is not keras.callbacks.Callback.on_train_batch_end
            ]
            before = self.train_function
            found = super().fit(x, callbacks=callbacks, **named)
            for step in (before, self.train_function):
                if hooks or (step is not None and not step.__module__.startswith("keras.")):
                    raise AssertionError(f"hooks: {hooks}, step: {step}")
            return found

    made = Checked([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return made, batches()


def grain() -> Any:
    import grain

    return model(), grain.MapDataset.range(BATCHES).map(batch).to_iter_dataset()


def loader() -> Any:
    import torch

    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return BATCHES * BATCH - 3

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            x, y = batch(index, 1)
            return x[0], y[0]

    return model(), torch.utils.data.DataLoader(Samples(), batch_size=BATCH)


def tf_data() -> Any:
    import tensorflow as tf

    return model(), tf.data.Dataset.from_tensor_slices(batch(0, BATCHES * BATCH - 3)).batch(BATCH)
