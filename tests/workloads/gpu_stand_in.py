"""A cell's process that claims to run on a GPU, on a machine without one: for tests of the code around a GPU cell.

As a script it takes the place of `runner.cell.entry`: the backend computes on the CPU, and says that it is a GPU.
As a module it has workloads: `tests.workloads.gpu_stand_in:NAME`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

ALLOCATED_BYTES, PEAK_BYTES = 200 << 20, 640 << 20


def claiming(adapter: Any) -> Any:
    """Return the adapter of a backend on a CPU, which says that tensors are on a GPU."""
    from keras_matrix.records.schema import DeviceProof

    adapter.proof = lambda: DeviceProof("gpu", "cuda:0", 1, "NVIDIA H100 80GB HBM3")
    adapter.platforms = lambda tensors: {"gpu"}
    adapter.peak_device_memory_bytes = lambda: PEAK_BYTES
    adapter.device_memory_bytes = lambda: ALLOCATED_BYTES
    adapter.reset_peak_device_memory = lambda: True
    return adapter


def _data() -> tuple[Any, Any]:
    return np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")


def well(**_: Any) -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model, *_data()


def losing(lost: str, **_: Any) -> Any:
    """Train as the others, and lose the GPU in a measured epoch: make the file that the fake driver looks for."""
    import keras

    class Losing(keras.layers.Dense):  # type: ignore[misc]
        steps = 0

        def call(self, inputs: Any, training: bool | None = None) -> Any:
            Losing.steps += 1
            if Losing.steps > 300:
                Path(lost).touch()
            return super().call(inputs)

    model = keras.Sequential([keras.Input((4,)), Losing(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model, *_data()


def main() -> None:
    """Do a cell's job as `runner.cell.entry` does, with a backend that claims to be on a GPU."""
    from keras_matrix.runner.cell import backends, entry

    load = backends.load
    backends.load = lambda backend: claiming(load(backend))
    entry.main()


if __name__ == "__main__":
    main()
