"""Models that predict and are unusual to call; each is `tests.workloads.called:NAME` in a matrix."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

SAMPLES, FEATURES = 16, 4


def _values(*shape: int) -> Any:
    return np.random.default_rng(0).random((SAMPLES, *shape), "float32")


def _ready(model: Any) -> Any:
    model.compile()
    return model


def several() -> tuple[Any, Any]:
    """A model of inputs in a dict, with two outputs in another."""
    first, second = keras.Input((FEATURES,), name="first"), keras.Input((2,), name="second")
    joined = keras.layers.Concatenate()([keras.layers.Dense(3)(first), second])
    outputs = {"score": keras.layers.Dense(1)(joined), "kind": keras.layers.Dense(5, activation="softmax")(joined)}
    model = keras.Model({"first": first, "second": second}, outputs)
    return _ready(model), {"first": _values(FEATURES), "second": _values(2)}


def product(size: int = 8) -> tuple[Any, Any]:
    """A model that multiplies a matrix of so many samples by one of its size."""
    inputs = keras.Input((size,))
    return _ready(keras.Model(inputs, keras.layers.Dense(size, use_bias=False)(inputs))), np.ones(
        (size, size), "float32"
    )


def texts() -> tuple[Any, Any]:
    """A model of texts, which TensorFlow alone has."""
    words = keras.Input((1,), dtype="string")
    found = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words)
    return _ready(keras.Model(words, keras.layers.Dense(2)(found))), np.array([["a"], ["b"]] * (SAMPLES // 2))


def not_finite() -> tuple[Any, Any]:
    """A model whose outputs are not numbers."""
    inputs = keras.Input((FEATURES,))
    return _ready(keras.Model(inputs, keras.ops.log(keras.layers.Dense(2)(inputs) * 0 - 1))), _values(FEATURES)


class _Deciding(keras.Model):
    """Decides in Python by a number that it computes, which cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        outputs = self.dense(inputs)
        return outputs if float(keras.ops.sum(outputs)) > 0 else -outputs


def deciding() -> tuple[Any, Any]:
    """A model that runs one operation after the other only. Its `call()` takes no `training`."""
    return _ready(_Deciding()), _values(FEATURES)


class _Failing(keras.Model):
    """A model that cannot be called at all."""

    def call(self, inputs: Any) -> Any:
        raise RuntimeError("this model fails")


def failing() -> tuple[Any, Any]:
    """A model whose error is its own, however it is called."""
    return _ready(_Failing()), _values(FEATURES)


def with_lambda() -> tuple[Any, Any]:
    """A model with a layer of a function without a name, which no file of Keras's own format takes."""
    inputs = keras.Input((FEATURES,))
    scaled = keras.layers.Lambda(lambda x: x * 2 + 1)(keras.layers.Dense(2)(inputs))
    return _ready(keras.Model(inputs, scaled)), _values(FEATURES)


class Counting(keras.Model):
    """Changes itself in Python at each call, which an exporter sees once. TensorFlow exports no name with `_` first."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.calls = keras.layers.Dense(2), []

    def call(self, inputs: Any) -> Any:
        self.calls.append(None)
        return self.dense(inputs) + len(self.calls)


def counting() -> tuple[Any, Any]:
    """A model whose outputs depend on how often it was called."""
    return _ready(Counting()), _values(FEATURES)


def any_length() -> tuple[Any, Any]:
    """A model of sequences of any length."""
    inputs = keras.Input((None, FEATURES))
    joined = keras.layers.GlobalAveragePooling1D()(keras.layers.Conv1D(3, 2, padding="same")(inputs))
    return _ready(keras.Model(inputs, keras.layers.Dense(2)(joined))), _values(7, FEATURES)


class OfTomorrow(keras.Sequential):
    """A model whose file says that a later version of its format wrote it."""

    def export(self, filepath: str, **named: Any) -> None:
        super().export(filepath, **named)
        import onnx

        model = onnx.load(filepath)
        model.ir_version = 99
        Path(filepath).write_bytes(model.SerializeToString())


def of_tomorrow() -> tuple[Any, Any]:
    """A model whose ONNX file the runtime is too old for."""
    return _ready(OfTomorrow([keras.Input((FEATURES,)), keras.layers.Dense(2)])), _values(FEATURES)


class _Aborting(keras.Sequential):
    """A model whose export prints and ends the process, as an exporter may that is not written in Python."""

    def export(self, *arguments: Any, **named: Any) -> None:
        print("\x00 not a message", flush=True)
        os.abort()


def aborting() -> tuple[Any, Any]:
    """A model that cannot be exported, and whose exporter ends the process."""
    return _ready(_Aborting([keras.Input((FEATURES,)), keras.layers.Dense(2)])), _values(FEATURES)


class _OwnStep(keras.Sequential):
    """A model whose step of prediction is not its call."""

    def predict_step(self, *arguments: Any) -> Any:
        predicted = super().predict_step(*arguments)
        return (predicted[0] * 2, predicted[1]) if keras.backend.backend() == "jax" else predicted * 2


def own_step() -> tuple[Any, Any]:
    """A model that `predict` and `predict_on_batch` let answer otherwise than its call."""
    return _ready(_OwnStep([keras.Input((FEATURES,)), keras.layers.Dense(2)])), _values(FEATURES)


class _OwnTraining(keras.Model):
    def train_step(self, *arguments: Any) -> Any:
        return super().train_step(*arguments)


def own_training() -> tuple[Any, Any, Any]:
    """A model with a training step of its own."""
    inputs = keras.Input((FEATURES,))
    model = _OwnTraining(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model, _values(FEATURES), _values(1)


class OwnLoss(keras.Model):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:  # as before Keras 3.3
        return super().compute_loss(x, y, y_pred, sample_weight) * 2


def losses() -> tuple[Any, Any, Any]:
    """A model with a loss of its own, the sum of two, which normalises its batch."""
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3)(inputs))
    outputs = {
        "first": keras.layers.Dense(1, name="first")(hidden),
        "second": keras.layers.Dense(2, name="second")(hidden),
    }
    model = OwnLoss(inputs, outputs)
    model.compile("sgd", {"first": "mse", "second": "mae"})
    return model, _values(FEATURES), {"first": _values(1), "second": _values(2)}
