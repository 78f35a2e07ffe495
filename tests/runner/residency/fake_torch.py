"""PyTorch: the timed loop on fake tensors, which have no values: reading one, as `.item()` does, raises.

The device is the CPU: a build without CUDA has no device guard for fake CUDA tensors. `python fake_torch.py STEP`
prints how many batches were drawn when the first value was read, whether a step read it, and whether each step got one
of the placed tensors itself.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import keras
import numpy as np
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode, unset_fake_temporarily

from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.loop import Stretch
from keras_matrix.runner.cell.phases import fit_epochs

STEPS = 6
taken: list[int] = []


class Plain(keras.Sequential):  # type: ignore[misc]
    """A model that notes which tensors its steps get."""

    def train_step(self, data: Any) -> Any:
        taken.extend(map(id, data[:2]))
        return super().train_step(data)


class Reading(Plain):
    """A model whose step reads its loss, and so waits for the device."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        logs["loss"].item()
        return logs


def let_loader_start() -> None:
    """Let a data loader draw its seed, a number of the host, outside of the fake mode."""
    kind = torch.utils.data.dataloader._SingleProcessDataLoaderIter
    plain = kind.__init__

    def begin(loader_iterator: Any, loader: Any) -> None:
        with unset_fake_temporarily():
            plain(loader_iterator, loader)

    kind.__init__ = begin


def main(kind: type[Any]) -> None:
    """Train until a value is read."""
    adapter = backends.load("torch")
    let_loader_start()
    calls: list[str] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = kind([keras.Input((8,)), keras.layers.Dense(4, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=["mae"])
        given = [adapter.resident((np.ones((16, 8), "float32"), np.ones((16, 4), "float32"))) for _ in range(3)]
        feed = adapter.feeder(given)(STEPS)
        try:
            fit_epochs(model, feed.source, adapter, Stretch(STEPS, 1))
        except DataDependentOutputException as error:
            calls = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    placed = {id(part) for batch in given for part in batch}
    print(
        json.dumps(
            {
                "drawn": feed.drawn(),
                "read_in_step": "train_step" in calls,
                "read": bool(calls),
                "same_tensors": placed >= set(taken),
            }
        )
    )


if __name__ == "__main__":
    main(Reading if sys.argv[1] == "reading" else Plain)
