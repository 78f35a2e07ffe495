"""Twins of Keras models in plain framework code, and the steps between them and Keras's `fit`."""

from __future__ import annotations

import importlib
from typing import Any

from keras_matrix.models.workload import UnsupportedWorkload

WORKLOADS = ("mnist_mlp", "cifar10_cnn", "lstm", "lstm_text_generation", "decoder_lm")


def load(backend: str) -> Any:
    """Return the module of a backend's implementations. Raises `UnsupportedWorkload` for a backend without one."""
    name = f"keras_matrix.models.twins.{backend}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnsupportedWorkload(f"implementation: {backend} has only keras") from None
