"""Workloads whose layers are computed again in the backward pass, some of which Keras cannot compute again."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

_CLASSES = 10


def _trained(layers: list[Any]) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(_CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    generator = np.random.default_rng(0)
    return model, generator.random((64, 32), "float32"), generator.integers(0, _CLASSES, 64)


def dense() -> tuple[Any, Any, Any]:
    """Only layers that do not use `training`."""
    return _trained([keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(64, activation="gelu")])


def dropout() -> tuple[Any, Any, Any]:
    """A layer that does something else in training."""
    return _trained([keras.layers.Dense(64, activation="gelu"), keras.layers.Dropout(0.5)])


def in_parts() -> tuple[Any, Any, Any]:
    """A model within the model: neither is computed again as one."""
    part = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="gelu")])
    return _trained([part])


class _OwnWeights(keras.Model):
    """A model without layers."""

    def build(self, shape: Any) -> None:
        self.product = self.add_weight(shape=(shape[-1], _CLASSES))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.product)


def no_layers() -> tuple[Any, Any, Any]:
    """A model that computes with weights of its own."""
    _, x, y = dense()
    model = _OwnWeights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.build(x.shape)
    return model, x, y


def accumulating() -> tuple[Any, Any, Any]:
    """An optimizer that averages the gradients of two steps by itself."""
    model, x, y = dense()
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), model.loss)
    return model, x, y


def trained_before() -> tuple[Any, Any, Any]:
    """An optimizer whose variables exist when build() returns."""
    model, x, y = dense()
    model.train_on_batch(x, y)
    return model, x, y
