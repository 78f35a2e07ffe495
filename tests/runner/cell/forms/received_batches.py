"""Run in a process with KERAS_BACKEND set: what a model's `train_step` receives from `fit` and in a cell, as JSON.

Usage: python received_batches.py SEED COUNT. For each of COUNT random nested structures of arrays, the batches that
plain `fit(x, y, sample_weight)` hands to `train_step`, those of a cell with resident batches and with batches from host
memory must be the same: structure, types, shapes and values. Then the forms of `build` that need Keras.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")  # third-party warnings at import; the batches below are what is tested

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_matrix.models import user_workload  # noqa: E402
from keras_matrix.models.workload import UnsupportedWorkload  # noqa: E402
from keras_matrix.runner.cell import backends  # noqa: E402
from keras_matrix.runner.cell.batches import counted_feed, make_batches  # noqa: E402
from keras_matrix.runner.cell.loop import Stretch  # noqa: E402
from keras_matrix.runner.cell.phases import fit_epochs  # noqa: E402
from tests.conftest import make_settings  # noqa: E402

BATCH, BATCHES = 4, 3
DTYPES = ("float32", "float64", "int32", "uint8")


class Recording(keras.Model):  # type: ignore[misc]
    """Records the batches that its `train_step` receives, and trains nothing. It has no `call()`."""

    def __init__(self) -> None:
        super().__init__()
        self.built = True
        self.received: list[Any] = []

    def train_step(self, *arguments: Any) -> Any:
        self.received.append(described(arguments[-1]))
        logs = {"loss": keras.ops.zeros(())}
        return logs if len(arguments) == 1 else (logs, arguments[0])


def described(batch: Any) -> Any:
    """Return a batch's structure with the type, the shape and the sum of each array."""
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {key: described(item) for key, item in sorted(batch.items())}
    if isinstance(batch, list | tuple):
        return [type(batch).__name__, *map(described, batch)]
    array = keras.ops.convert_to_numpy(batch)
    return [str(array.dtype), list(array.shape), float(array.sum(dtype=np.float64))]


def structure(depth: int) -> Any:
    """Return a random nested structure of arrays with `BATCH * BATCHES` rows."""
    kind = random.choice(["array", "array", "dict", "list", "tuple"]) if depth else "array"
    items = [structure(depth - 1) for _ in range(random.randint(1, 3))] if kind != "array" else []
    if kind == "dict":
        return {f"part_{number}": item for number, item in enumerate(items)}
    if kind in ("list", "tuple"):
        return tuple(items) if kind == "tuple" else items
    shape = (BATCH * BATCHES, *random.choices([1, 2, 3], k=random.randint(0, 2)))
    return (np.random.default_rng(random.randint(0, 999)).random(shape) * 99).astype(random.choice(DTYPES))


def parts() -> tuple[Any, ...]:
    """Return random arguments of `fit`: x, perhaps y, perhaps the weights of y's samples."""
    x, y = structure(2), structure(1)
    weight = np.random.default_rng(1).random(BATCH * BATCHES).astype("float32")
    return random.choice([(x,), (x, None), (x, y), (x, y, weight)])


def model() -> Recording:
    """Return a compiled model that runs eagerly."""
    recording = Recording()
    recording.compile(optimizer="sgd", run_eagerly=True)
    return recording


def in_a_cell(arguments: tuple[Any, ...], feed: str) -> Any:
    """Return what `train_step` receives in an epoch of a cell."""
    built = user_workload._checked("own:build", (model(), *arguments))
    settings = make_settings(batch_size=BATCH, samples=BATCH * BATCHES)
    batches, adapter = make_batches(built, settings, BATCHES), backends.load(keras.backend.backend())
    feeder = adapter.feeder(batches) if feed == "device_resident" else lambda _: counted_feed(batches)
    fit_epochs(built.model, feeder(BATCHES).source, adapter, Stretch(BATCHES, 1))
    return built.model.received[-BATCHES:]


def compared(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return what is received from plain `fit` and in cells."""
    plain = model()
    x, y, weight = (*arguments, None, None)[:3]
    plain.fit(x, y, sample_weight=weight, batch_size=BATCH, shuffle=False, verbose=0)
    feeds = ("device_resident", "host")
    return {"plain": plain.received[-BATCHES:], **{feed: in_a_cell(arguments, feed) for feed in feeds}}


def words() -> str:
    """Return what happens to arrays of strings."""
    try:
        built = user_workload._checked("own:build", (model(), np.array([["a"], ["b"]]), np.zeros(2)))
    except UnsupportedWorkload as problem:
        return str(problem)
    return str(built.samples(2, 0)[0].dtype)


def without_call() -> list[int]:
    """Return the rows that a source of dicts gives to a model without `call()`, as its pipeline states them."""

    class Source(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return {"a": np.zeros((BATCH, 2)), "scale": np.float32(2)}

    built = user_workload._checked("own:build", (model(), Source()))
    assert built.pipeline is not None
    return [built.pipeline.batch_size, len(built.samples(BATCH, 0))]


if __name__ == "__main__":
    random.seed(int(sys.argv[1]))
    cases = [compared(parts()) for _ in range(int(sys.argv[2]))]
    print(json.dumps({"cases": cases, "words": words(), "without_call": without_call()}))
