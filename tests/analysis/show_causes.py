"""Run in a process with KERAS_BACKEND set: each known cause of a deviation in isolation; prints the results as JSON.

Every figure is a relative error against NumPy in float64, unless stated otherwise.
"""

from __future__ import annotations

import json
import math
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from numpy.typing import NDArray

from keras_matrix.models.language_models.hub import keras_hub
from keras_matrix.models.layers.heads import rmsprop
from keras_matrix.models.process import keep_float64
from keras_matrix.records.instruments.parity import Operation
from keras_matrix.runner.cell.parity import Recorder, watch

Array = NDArray[Any]
RNG = np.random.default_rng(0)
RATE, DECAY = 1e-4, 1e-6
OPTIMIZERS = (
    *("Adam", "AdamW", "Nadam", "Adamax", "Lamb", "Lion", "Muon", "ScheduleFreeAdamW"),
    *("SGD", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Ftrl"),
)
ROW_OPTIMIZERS = ("Adam", "Nadam", "RMSprop", "Adagrad", "Adamax", "Lion", "SGD")
SETTINGS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "AdamW": {"weight_decay": 0.01}}


def apart(value: Any, exact: Array) -> float:
    found = np.asarray(ops.convert_to_numpy(value), np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def promotion() -> float:
    x = RNG.standard_normal((64, 8))
    normal = layers.BatchNormalization(epsilon=1e-3, dtype="float64")
    return apart(normal(ops.convert_to_tensor(x), training=True), (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3))


def gelu() -> float:
    x = RNG.standard_normal(1000)
    exact = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return apart(keras.activations.gelu(ops.convert_to_tensor(x), approximate=False), exact)


def attention() -> float:
    query, key, value = RNG.standard_normal((3, 2, 8, 1, 4))
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    exact = np.einsum("bhqk,bkhd->bqhd", weights, value)
    return apart(ops.dot_product_attention(*map(ops.convert_to_tensor, (query, key, value))), exact)


def hub_normalisation() -> float:
    keras_hub()
    from keras_hub.src.models.llama.llama_layernorm import LlamaLayerNorm

    x = RNG.standard_normal((64, 8))
    exact = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return apart(LlamaLayerNorm(epsilon=1e-6)(ops.convert_to_tensor(x)), exact)


def hub_rotation() -> float:
    x = RNG.standard_normal((1, 64, 8))
    angles = np.arange(64)[:, None] * 10_000.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)
    rotated = keras_hub().layers.RotaryEmbedding()(ops.convert_to_tensor(x))
    return apart(rotated, np.concatenate([turned.real, turned.imag], -1))


def hub_softmax() -> float:
    keras_hub()
    from keras_hub.src.models.llama.llama_attention import LlamaAttention

    x = RNG.standard_normal((64, 8))
    attention = LlamaAttention(1, 1)
    attention.build((None, 64, 8))
    return apart(attention._softmax(ops.convert_to_tensor(x)), np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def schedule() -> float:
    """Return the error of the first step's length, which RMSprop makes rate / sqrt(1 - rho) for every gradient."""
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=rmsprop(RATE, DECAY), loss=lambda _, predicted: ops.mean(predicted))
    x = np.full((2, 1), 1e6)
    model.train_on_batch(x, x)
    return apart(model.get_weights()[0], np.full((1, 1), -RATE / math.sqrt(1 - 0.9)))


def optimizer_named(name: str) -> Any:
    return getattr(keras.optimizers, name)(learning_rate=RATE, **SETTINGS.get(name, {}))


def second_step(name: str) -> list[float]:
    """Return what an optimizer's second step adds to a weight of float64."""
    rng = np.random.default_rng(2)
    weight = keras.Variable(rng.standard_normal((3, 2)), dtype="float64")
    optimizer = optimizer_named(name)
    optimizer.build([weight])
    states = []
    for _ in range(2):
        states.append(np.array(ops.convert_to_numpy(weight), copy=True))
        optimizer.apply([ops.convert_to_tensor(rng.standard_normal((3, 2)))], [weight])
    return list((np.asarray(ops.convert_to_numpy(weight)) - states[1]).ravel())


def repeated_token(tokens: tuple[int, ...], optimizer: str = "Adam", correct: tuple[Operation, ...] = ()) -> float:
    """Return by how much the first step moves an embedding's row whose gradient is not zero, in learning rates."""
    model = keras.Sequential([keras.Input((2,), dtype="int32"), layers.Embedding(4, 2, "ones")])
    model.compile(optimizer=optimizer_named(optimizer), loss=lambda _, predicted: ops.mean(predicted))
    Recorder(model, correct=correct)
    before = model.get_weights()[0]
    model.train_on_batch(np.array([tokens], "int32"), np.zeros((1, 2, 2)))
    return float(abs(model.get_weights()[0] - before)[tokens[0], 0] / RATE)


def variance(mean: float) -> float:
    """Return the error of the float32 variance of values that deviate by 1 from `mean`."""
    x = (RNG.standard_normal((512, 8)) + mean).astype("float32")
    return apart(ops.moments(ops.convert_to_tensor(x), axes=(0,))[1], x.astype("float64").var(0))


def deep_gradient(activation: str, dtype: str) -> dict[str, Array]:
    """Return by weight the gradients of forty layers with batch normalisation; weights and data are always the same."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(1)
    with_dtype: dict[str, Any] = {"dtype": dtype}
    inputs = x = keras.Input((16,), dtype=dtype)
    for _ in range(40):
        y = layers.BatchNormalization(**with_dtype)(layers.Dense(64, **with_dtype)(x))
        x = layers.Activation(activation, **with_dtype)(y)
    model = keras.Model(inputs, layers.Dense(1, **with_dtype)(x))
    model.set_weights(
        [rng.normal(size=w.shape, scale=0.1).astype("float32") + (w.name == "gamma") for w in model.weights]
    )
    model.compile(optimizer="sgd", loss="mse")
    recorder = Recorder(model)
    model.train_on_batch(rng.random((32, 16), "float32"), rng.random((32, 1), "float32"))
    paths = [variable.path for variable in model.trainable_variables]
    return dict(zip(paths, recorder.gradients(), strict=True))


def amplified(activation: str) -> float:
    """Return how far the worst kernel's float32 gradient is from the float64 one."""
    rounded, exact = (deep_gradient(activation, dtype) for dtype in ("float32", "float64"))
    return max(apart(a, b) for a, b in zip(rounded.values(), exact.values(), strict=True) if b.ndim == 2)


def compute_in(dtype: str) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


FLOAT32_LAYERS = {f.__name__: f for f in (hub_normalisation, hub_rotation, hub_softmax)}


def main() -> None:
    shown: dict[str, Any] = {"variance": [variance(0.0), variance(100.0)]}
    compute_in("float64")
    shown["promotion"] = [promotion()]
    keep_float64()
    shown["promotion"].append(promotion())
    shown |= {"gelu": gelu(), "attention": attention(), "schedule": schedule()}
    shown |= {name: figure() for name, figure in FLOAT32_LAYERS.items()}
    shown["second_step"] = {name: second_step(name) for name in OPTIMIZERS}
    shown["repeated_token"] = [repeated_token((1, 2)), repeated_token((1, 1))]
    shown["repeated_by_optimizer"] = {name: repeated_token((1, 1), name) for name in ROW_OPTIMIZERS}
    compute_in("float32")
    shown["amplified"] = {name: amplified(name) for name in ("relu", "silu")}
    compute_in("float64")
    ran = watch(keras.backend.backend(), list(Operation))
    shown["corrected"] = {"gelu": gelu(), "attention": attention(), "schedule": schedule()}
    shown["corrected"] |= {name: figure() for name, figure in FLOAT32_LAYERS.items()}
    shown["corrected"]["second_step"] = {name: second_step(name) for name in OPTIMIZERS}
    shown["corrected"]["repeated_token"] = repeated_token((1, 1), correct=(Operation.REPEATED_ROWS,))
    shown["ran"] = sorted(ran)
    print(json.dumps(shown))


main()
