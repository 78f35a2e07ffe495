"""Keras's NumPy backend, which can predict and not train: the fourth backend of `tests/test_backends.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_matrix.records.schema import DeviceProof
from keras_matrix.records.settings import Settings
from keras_matrix.runner.cell.backends import LOOKAHEAD, Batch, CompileEvents, Feeder, Unsupported


class BackendAdapter:
    """NumPy computes at once, compiles nothing and knows no device but the CPU."""

    lookahead: int | None = LOOKAHEAD

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

    def wait(self, outputs: Any) -> None:
        return None

    def resident(self, batch: Batch) -> Batch:
        return batch

    def endless(self, batches: Sequence[Batch]) -> Any:
        raise Unsupported("phase: Keras on NumPy can only predict")

    def feeder(self, batches: Sequence[Batch]) -> Feeder:
        raise Unsupported("phase: Keras on NumPy can only predict")

    def platforms(self, tensors: Any) -> set[str]:
        return {"cpu"}

    def output(self, model: Any, inputs: Any) -> Any:
        return model(inputs, training=False)

    def compile_events(self) -> CompileEvents:
        return CompileEvents()

    def compilations(self) -> int | None:
        return None

    def graph_breaks(self) -> int | None:
        return None

    def peak_device_memory_bytes(self) -> int | None:
        return None

    def reset_peak_device_memory(self) -> bool | None:
        return None

    def device_memory_bytes(self) -> int | None:
        return None

    def tf32(self) -> bool | None:
        return None

    def compute_capability(self) -> tuple[int, int] | None:
        return None

    def run(self, function: Callable[..., Any], arrays: Sequence[Any], jit: bool) -> Any:
        return function(*arrays)

    def intra_op_threads(self) -> int | None:
        return None

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
