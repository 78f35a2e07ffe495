"""A workload that recompiles in every epoch; on JAX it also uses a CPU all the time, also while it waits."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import keras
import numpy as np

STEPS_A_PROGRAM = 200


def _burn() -> None:
    while True:
        sum(range(100_000))


def _on_tensorflow() -> Any:
    """Return what takes a Python number: each new one is another graph."""
    import tensorflow as tf

    function = tf.function(lambda value, number: value * number)
    return lambda number: function(tf.constant(1.0), number)


def _on_jax() -> Any:
    """Return what computes on a length that grows: each is another program."""
    import jax.numpy as jnp

    return lambda number: jnp.cumsum(np.zeros(1 + number, "float32"))


def _on_torch() -> Any:
    """Return what takes a text, and has what torch.compile cannot compile in its middle."""
    import torch

    def function(value: Any, text: str) -> Any:
        value = value + len(text)
        torch._dynamo.graph_break()
        return value + len(text)

    compiled = torch.compile(function, backend="eager")
    return lambda number: compiled(torch.ones(1), "x" * (1 + number))


class Restless(keras.Model):
    """Calls a function before each step with a number that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self._numbers = itertools.count()
        self._changing = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}[keras.backend.backend()]()
        self._step: Any = None

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def make_train_function(self, force: bool = False) -> None:
        super().make_train_function(force)
        if self._step is None:
            plain = self.train_function

            def step(*arguments: Any) -> Any:
                self._changing(next(self._numbers) // STEPS_A_PROGRAM)
                return plain(*arguments)

            self._step = step
        self.train_function = self._step


def build(**_: Any) -> Any:
    if keras.backend.backend() == "jax":
        threading.Thread(target=_burn, daemon=True).start()
    model = Restless()
    model.build((None, 4))
    model.compile(optimizer="sgd", loss="mse")
    x = np.ones((64, 4), "float32")
    return model, x, x[:, :1]
