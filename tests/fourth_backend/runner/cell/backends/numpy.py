"""Keras's NumPy backend, which can predict and not train: the fourth backend of `tests/test_fourth_backend.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import BackendAdapter, Unsupported
from keras_matrix.runner.cell.batches import Batch


class Adapter(BackendAdapter):
    """NumPy computes at once, compiles nothing and has no device but the CPU."""

    def configure(self, settings: Settings, compile_cache_dir: str | None) -> None:
        self.check(settings)

    def check(self, settings: Settings) -> None:
        if settings.phase != "predict":
            raise Unsupported(f"phase: Keras on NumPy can only predict, got {settings.phase}")

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
