"""Small workloads for several devices: equal work, other meanings, and what cannot be divided."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import keras
import numpy as np
from keras import layers

ROWS, WIDTH, SAMPLES = 16, 8, 64
Workload = tuple[Any, Any, Any]
CALLS_BEFORE_FAILURE = 3


def with_data(model: Any) -> Workload:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(SAMPLES, width)).astype("float32") for width in (WIDTH, 1))
    return model, x, y


def compiled(model: Any, loss: Any = "mse", rate: float = 0.05) -> Any:
    model.compile(optimizer=keras.optimizers.SGD(rate), loss=loss)
    return model


def network(*middle: Any) -> Any:
    return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, activation="tanh"), *middle, layers.Dense(1)])


def dense() -> Workload:
    return with_data(compiled(network()))


def summed() -> Workload:
    return with_data(compiled(network(), keras.losses.MeanSquaredError(reduction="sum"), 0.05 / ROWS))


def normalised() -> Workload:
    return with_data(compiled(network(layers.BatchNormalization(), layers.Dropout(0.5))))


def accumulated() -> Workload:
    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), loss="mse")
    return with_data(model)


def own_jit() -> Workload:
    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", jit_compile=True)
    return with_data(model)


def own_eager() -> Workload:
    model = network()
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
    return with_data(model)


def unused_weight() -> Workload:
    inputs = keras.Input((WIDTH,))
    unused = layers.Dense(1, name="unused")(inputs)
    model = keras.Model(inputs, [layers.Dense(1, name="used")(inputs), unused])
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=["mse", None])
    return with_data(model)


def with_other_metrics() -> Workload:
    model = network(layers.Dense(1, activation="sigmoid"))
    metrics = ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=metrics)
    return with_data(model)


def odd() -> Workload:
    return with_data(compiled(keras.Sequential([keras.Input((WIDTH,)), layers.Dense(3), layers.Dense(1)])))


class OwnStep(keras.Model):  # type: ignore[misc]
    """A model with a training step of its own, which does what Keras's does."""

    def train_step(self, *arguments: Any) -> Any:
        return super().train_step(*arguments)


def own_step() -> Workload:
    inputs = keras.Input((WIDTH,))
    return with_data(compiled(OwnStep(inputs, layers.Dense(1)(inputs))))


class Source(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that are not arrays of samples."""

    def __len__(self) -> int:
        return SAMPLES // ROWS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.ones((ROWS, WIDTH), "float32"), np.ones((ROWS, 1), "float32")


def own_source() -> tuple[Any, Any]:
    return compiled(network()), Source()


def is_further_replica() -> bool:
    return multiprocessing.parent_process() is not None


def fails_while_built() -> Workload:
    if is_further_replica():
        raise RuntimeError("not on this replica")
    return dense()


def killed_while_built() -> Workload:
    if is_further_replica():
        os.kill(os.getpid(), signal.SIGKILL)
    return dense()


class Failing(layers.Layer):  # type: ignore[misc]
    """Fails or is killed on a further replica after a few steps."""

    def __init__(self, kill: bool) -> None:
        super().__init__()
        self._kill, self._calls = kill, 0

    def call(self, x: Any) -> Any:
        self._calls += is_further_replica()
        if self._calls > CALLS_BEFORE_FAILURE:
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("lost in a step")
        return x


def fails_in_a_step() -> Workload:
    return with_data(compiled(network(Failing(kill=False))))


def killed_in_a_step() -> Workload:
    return with_data(compiled(network(Failing(kill=True))))
