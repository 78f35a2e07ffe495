"""Keras's NumPy backend, which can predict and not train: the backend that `tests/test_new_backend.py` adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_matrix.records.schema import DeviceProof
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.batches import Batch


class Adapter(BackendAdapter):
    """NumPy computes at once, compiles nothing and has no device but the CPU."""

    def seed(self, seed: int) -> None:
        np.random.seed(seed)

    def proof(self) -> DeviceProof:
        return DeviceProof("cpu", "cpu:0", 1)

    def barrier(self, model: Any) -> None:
        return None

    def resident(self, batch: Batch) -> Batch:
        return batch

    def platforms(self, tensors: Any) -> set[str]:
        return {"cpu"}

    def output(self, model: Any, inputs: Any) -> Any:
        return model(inputs, training=False)

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        return function(*arrays)

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
