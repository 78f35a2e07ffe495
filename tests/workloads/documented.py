"""Plugins that follow the advice of docs/workloads.md, and plugins that do not."""

from __future__ import annotations

from typing import Any

import numpy as np


def logits(**_: Any) -> Any:
    """A classifier that ends in logits."""
    return _classifier([], from_logits=True)


def probabilities(**_: Any) -> Any:
    """A classifier that ends in a softmax whose dtype follows floatx."""
    import keras

    return _classifier([keras.layers.Activation("softmax", dtype=keras.config.floatx())], from_logits=False)


def fixed_dtype(**_: Any) -> Any:
    """A classifier that ends in a softmax of float32, whatever the precision."""
    import keras

    return _classifier([keras.layers.Activation("softmax", dtype="float32")], from_logits=False)


def defective(**_: Any) -> Any:
    """A classifier whose optimizer takes steps 0.1 % too long on TensorFlow."""
    import keras

    here = keras.backend.backend() == "tensorflow"
    return _classifier([], from_logits=True, learning_rate=0.001001 if here else 0.001)


def _classifier(head: list[Any], from_logits: bool, learning_rate: float = 0.001) -> Any:
    import keras

    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([*layers, *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate), loss=loss)
    rng = np.random.default_rng(0)
    return model, rng.random((64, 8), dtype=np.float32), rng.integers(0, 4, 64)
