"""The first hour's probe of a backend on its device: `python -P -m keras_matrix.runner.cell.checks.probes FOLDER`.

Its numbers show whether measurements can be trusted there, without a clock inside a cell.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import keras
import numpy as np

from keras_matrix.records.instruments.first_hour import ProbeAnswer, ProbeOrder
from keras_matrix.runner.cell import backends
from keras_matrix.runner.cell.backends import BackendAdapter
from keras_matrix.runner.cell.checks.answering import answer_order
from keras_matrix.runner.cell.clock import monotonic


def answer(order: ProbeOrder) -> ProbeAnswer:
    """Probe the backend of this process."""
    adapter = backends.load(order.settings.backend)
    adapter.configure(order.settings, None)
    called_s, waited_s, read_s = _synchronisation(adapter, order.rows, order.products)
    return ProbeAnswer(
        device=adapter.proof(),
        versions=adapter.versions(),
        called_s=called_s,
        waited_s=waited_s,
        read_s=read_s,
        errors={"matmul": _product_error(), "convolution": _convolution_error(), "rnn": _recurrent_error()},
    )


def _synchronisation(adapter: BackendAdapter, rows: int, products: int) -> tuple[float, float, float]:
    """Return when a chain of products had been issued, when the barrier returned, and how long reading then took.

    The result is a weight of a model, since a barrier waits for weights on JAX.
    """
    model = keras.Sequential([keras.Input((rows,)), keras.layers.Dense(rows, use_bias=False)])
    model.compile(optimizer=keras.optimizers.SGD(), loss="mse")
    weight = model.layers[0].kernel
    factor = keras.ops.convert_to_tensor(np.eye(rows, dtype="float32"))

    def issue() -> None:
        value = weight.value
        for _ in range(products):
            value = keras.ops.matmul(value, factor)
        weight.assign(value)

    def read() -> None:
        keras.ops.convert_to_numpy(weight.value[:1, :1])

    issue()  # compilation and the choice of kernels happen once
    adapter.barrier(model)
    read()
    begun_s = monotonic()
    issue()
    called_s = monotonic() - begun_s
    adapter.barrier(model)
    waited_s = monotonic() - begun_s
    read()
    return called_s, waited_s, monotonic() - begun_s - waited_s


def relative_error(actual: Any, expected: Any) -> float:
    """Return |found - wanted| / |wanted| in the Frobenius norm; TF32 gives some 3e-4, float32 less than 1e-5."""
    exact = np.asarray(expected, "float64")
    return float(np.linalg.norm(np.asarray(actual, "float64") - exact) / np.linalg.norm(exact))


def _random(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def _product_error() -> float:
    a, b = _random(512, 512), _random(512, 512)
    product = keras.ops.convert_to_numpy(
        keras.ops.matmul(keras.ops.convert_to_tensor(a), keras.ops.convert_to_tensor(b))
    )
    return relative_error(product, a.astype("float64") @ b.astype("float64"))


def _convolution_error() -> float:
    """Return the error of a convolution over 3 x 3 pixels, against the sum of its nine products."""
    images, kernel = _random(8, 18, 18, 64), _random(3, 3, 64, 64)
    convolved = keras.ops.conv(
        keras.ops.convert_to_tensor(images),
        keras.ops.convert_to_tensor(kernel),
        padding="valid",
        data_format="channels_last",
    )
    wide = images.astype("float64")
    expected = sum(wide[:, i : i + 16, j : j + 16] @ kernel[i, j].astype("float64") for i in range(3) for j in range(3))
    return relative_error(keras.ops.convert_to_numpy(convolved), expected)


def _recurrent_error() -> float:
    """Return the error of one step of an LSTM of 256 units, against its formula."""
    units, x = 256, _random(64, 1, 256)
    layer = keras.layers.LSTM(units)
    layer.build(x.shape)
    kernel, bias = _random(256, 4 * units) / 16, np.zeros(4 * units, "float32")
    layer.set_weights([kernel, layer.get_weights()[1], bias])
    gates = x[:, 0].astype("float64") @ kernel.astype("float64")
    i, _, c, o = np.split(gates, 4, axis=1)
    expected = _sigmoid(o) * np.tanh(_sigmoid(i) * np.tanh(c))
    return relative_error(keras.ops.convert_to_numpy(layer(keras.ops.convert_to_tensor(x))), expected)


def _sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    answer_order(ProbeOrder, answer)
