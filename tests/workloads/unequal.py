"""Workloads that each do other work on one backend in one way; `equal` does not."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZE = 6


def equal(**_: Any) -> Any:
    return _built()


def epsilon(on: str = "jax", **_: Any) -> Any:
    """A normalisation with another epsilon."""
    return _built(epsilon=1e-2 if _here(on) else 1e-3)


def transposed(on: str = "jax", **_: Any) -> Any:
    """An activation transposed; its norm and its sum stay what they are."""
    return _built(transposes=_here(on))


def scaled_gradient(on: str = "jax", **_: Any) -> Any:
    """A layer whose gradient is 1 % too large, and whose output is right."""
    return _built(gradient_scale=1.01 if _here(on) else 1.0)


def learning_rate(on: str = "jax", **_: Any) -> Any:
    """An optimiser that takes steps 1 % too long."""
    return _built(rate=0.0101 if _here(on) else 0.01)


def loss(on: str = "jax", **_: Any) -> Any:
    """Another loss."""
    return _built(loss="MeanAbsoluteError" if _here(on) else "MeanSquaredError")


def reduction(on: str = "jax", **_: Any) -> Any:
    """The loss summed, not averaged, over the batch."""
    return _built(reduction="sum" if _here(on) else "sum_over_batch_size")


def momentum(on: str = "jax", **_: Any) -> Any:
    """A batch normalisation whose moving statistics move faster."""
    return _built(momentum=0.9 if _here(on) else 0.99)


def bias(on: str = "jax", **_: Any) -> Any:
    """A bias that is there and never added; it begins at zero, so that the first output is right."""
    return _built(bias=not _here(on))


def initialiser(on: str = "jax", **_: Any) -> Any:
    """Weights drawn from a wider distribution; what a backend drew is replaced by the weights it is given."""
    return _built(spread=0.9 if _here(on) else 0.3)


def shape(on: str = "jax", **_: Any) -> Any:
    """One unit more."""
    return _built(units=SIZE + 1 if _here(on) else SIZE)


def dropout(**_: Any) -> Any:
    """Random numbers that can be switched off, in a layer and in a recurrent cell."""
    return _built(dropout=0.5)


def noisy(**_: Any) -> Any:
    """Random numbers that cannot be switched off."""
    return _built(noisy=True)


def failing(on: str = "jax", **_: Any) -> Any:
    if _here(on):
        raise RuntimeError("the workload says no")
    return _built()


def _here(backend: str) -> bool:
    import keras

    return str(keras.backend.backend()) == backend


def _built(
    *,
    epsilon: float = 1e-3,
    transposes: bool = False,
    gradient_scale: float = 1.0,
    rate: float = 0.01,
    loss: str = "MeanSquaredError",
    reduction: str = "sum_over_batch_size",
    momentum: float | None = None,
    bias: bool = True,
    spread: float = 0.3,
    units: int = SIZE,
    dropout: float = 0.0,
    noisy: bool = False,
) -> Any:
    import keras
    from keras import layers, ops

    class Turned(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return ops.transpose(inputs, (0, 2, 1)) if transposes else inputs

    class Scaled(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs * gradient_scale - ops.stop_gradient(inputs * (gradient_scale - 1.0))

    class Biased(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.bias = self.add_weight(shape=shape[-1:], initializer="zeros", name="bias")

        def call(self, inputs: Any) -> Any:
            return inputs + self.bias * float(bias)

    class Noisy(layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.random.SeedGenerator(0)

        def call(self, inputs: Any) -> Any:
            return inputs + keras.random.normal(ops.shape(inputs), seed=self.generator)

    steps = [
        keras.Input((SIZE, SIZE)),
        layers.Dense(64, name="wide", kernel_initializer=keras.initializers.RandomNormal(stddev=spread)),
        layers.Dense(SIZE, name="first"),
        layers.LayerNormalization(epsilon=epsilon, name="normal"),
        Turned(name="turned"),
        layers.Dense(units, activation="tanh", name="second"),
        Scaled(name="scaled"),
        Biased(name="biased"),
    ]
    if momentum is not None:
        steps.append(layers.BatchNormalization(momentum=momentum, name="moving"))
    if dropout:
        steps += [layers.Dropout(dropout, name="drop"), layers.GRU(SIZE, dropout=dropout, name="loop")]
    if noisy:
        steps.append(Noisy())
    model = keras.Sequential([*steps, layers.Flatten(), layers.Dense(1, name="last")])
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.get({"class_name": loss, "config": {"reduction": reduction}}),
    )
    rng = np.random.default_rng(0)
    return model, rng.random((64, SIZE, SIZE), dtype=np.float32), rng.random((64, 1), dtype=np.float32)
