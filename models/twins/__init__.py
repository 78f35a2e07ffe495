"""Twins of Keras models in plain framework code, and the steps between them and Keras's own calls."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from keras_matrix.models.workload import UnsupportedWorkload
from keras_matrix.records.settings import FIT, GENERATE

TRAINED = ("mnist_mlp", "cifar10_cnn", "lstm", "lstm_text_generation", "decoder_lm")
GENERATING = ("gpt2",)
# The phase that the twin of a workload does.
PHASES: Mapping[str, str] = {**dict.fromkeys(TRAINED, FIT), **dict.fromkeys(GENERATING, GENERATE)}


def load(backend: str) -> Any:
    """Return the module of a backend's training steps and generation. Raises `UnsupportedWorkload` if it has none."""
    name = f"keras_matrix.models.twins.{backend}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        text = f"native code: {backend} has no twins; set implementation: keras, and another call"
        raise UnsupportedWorkload(text) from None
