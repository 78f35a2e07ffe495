"""Workloads for traces; each is `tests.workloads.traced:NAME` in a matrix."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, UNITS = 64, 128
# What a cell imports once its figures are complete.
AFTERWARDS = {"keras_matrix.runner.cell.tracing", "keras_matrix.runner.cell.tensorboard"}


def _model(*layers: Any) -> Any:
    import keras

    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((FEATURES,)), dense(UNITS, name="wide"), *layers, dense(1, name="narrow")])
    model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse")
    return model


def _data() -> tuple[Any, Any]:
    return np.ones((64, FEATURES), "float32"), np.zeros((64, 1), "float32")


def plain(**_: Any) -> Any:
    return _model(), *_data()


def nested(**_: Any) -> Any:
    """A layer within a layer, and a model within the model."""
    import keras

    inner = keras.Sequential([keras.Input((UNITS,)), keras.layers.Dense(UNITS, name="deep")], name="inner")
    return _model(inner), *_data()


def telling(**_: Any) -> Any:
    """Report the modules imported until the last request of a cell to its model."""
    import keras

    class Telling(keras.Sequential):  # type: ignore[misc]
        @property
        def weights(self) -> Any:
            names = [
                name
                for name in sys.modules
                if name.startswith(("keras_matrix.runner.cell.", "keras_matrix.models.", "keras_matrix.records.traces"))
            ]
            Path("modules.json").write_text(json.dumps(sorted(names)))
            return super().weights

    model = Telling(_model().layers)
    model.compile("sgd", "mse")
    return model, *_data()


def profiling(**_: Any) -> Any:
    """Have the backend's profiler running already or, where several may run, a build that has none."""
    backend = os.environ["KERAS_BACKEND"]
    if backend == "jax":
        import jax

        jax.profiler.start_trace("own")
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.profiler.experimental.start("own")
    else:
        import torch

        torch.autograd.kineto_available = lambda: False
    return plain()


def without_room(**_: Any) -> Any:
    """Be refused all but the smallest files, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
    return plain()


def dying(**_: Any) -> Any:
    """Die in the first layer's call once everything is measured; Keras calls it at each step on PyTorch only."""
    import keras

    class Dying(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            if AFTERWARDS & sys.modules.keys():
                ctypes.string_at(0)
            return x

    return _model(Dying()), *_data()
