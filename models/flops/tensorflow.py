"""TensorFlow: our count covers the operations of an eager pass; TensorFlow's profiler reads the traced graph.

The profiler counts operations with a known formula, also element-wise ones, and the body of a loop once.

On a GPU Keras runs LSTM and GRU layers as one cuDNN operation each without products: a formula counts it
(`recurrent_flops`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from keras_matrix.models.flops import ToolCount, around_thrown_away_steps, flat_matrix_elements, recurrent_flops

TOOL = "tf.compat.v1.profiler, float_operation"


def forward(model: Any, x: Any) -> int:
    """Count one forward pass, run eagerly: its loops are run, and so counted, step by step."""
    total = 0
    is_counting = True

    def see(kind: str | bytes, inputs: Any, attributes: Any, outputs: Any, *_: Any, **__: Any) -> None:
        nonlocal total
        name = _text(kind)
        if name in FLOPS and is_counting:
            attribute_by_name = {
                _text(key): _plain(value) for key, value in zip(attributes[::2], attributes[1::2], strict=True)
            }
            total += FLOPS[name](inputs, attribute_by_name, outputs)

    @contextmanager
    def uncounted() -> Iterator[None]:
        nonlocal is_counting
        is_counting = False
        yield
        is_counting = True

    op_callbacks.add_op_callback(see)
    try:
        with around_thrown_away_steps(uncounted):
            model(tf.nest.map_structure(tf.convert_to_tensor, x), training=False)
    finally:
        op_callbacks.remove_op_callback(see)
    return total


def framework(model: Any, x: Any, y: Any) -> ToolCount:
    """Trace forward pass and training step and return the profiler's counts of their graphs, without bytes."""
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    model.train_on_batch(x, y)  # makes the variables of optimiser and metrics
    forward_flops = _profiled(lambda x, y: model(x, training=False), x, y)
    return ToolCount(forward_flops, _profiled(lambda x, y: model.train_step((x, y)), x, y))


def _profiled(function: Callable[..., Any], *inputs: Any) -> float | None:
    graph = tf.function(function).get_concrete_function(*inputs).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder(
        tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    ).with_empty_output()
    profile = tf.compat.v1.profiler.profile(graph, options=options.build())
    return float(profile.total_float_ops) if profile is not None else None


def _text(name: str | bytes) -> str:
    """TensorFlow's two ways of running an operation eagerly name it in two ways."""
    return name.decode() if isinstance(name, bytes) else name


def _plain(value: Any) -> Any:
    """Return an attribute's value; in a function's graph, unlike in eager mode, it is a message with one field set."""
    return getattr(value, value.WhichOneof("value")) if hasattr(value, "WhichOneof") else value


def _product(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    transposed = attributes.get("transpose_a") or attributes.get("adj_x")
    return _twice(outputs[0].shape) * int(inputs[0].shape[-2 if transposed else -1])


def _convolution(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    height, width, channels, _ = inputs[1].shape
    return _twice(outputs[0].shape) * int(height * width * channels)


def _transposed_convolution(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    """Count the gradient of a convolution by its input, which is how TensorFlow runs a transposed one."""
    height, width, channels, _ = inputs[1].shape
    return _twice(inputs[2].shape) * int(height * width * channels)


def _depthwise(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    height, width, _, _ = inputs[1].shape
    return _twice(outputs[0].shape) * int(height * width)


def _einsum(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    equation = _text(attributes["equation"]).replace(" ", "").split("->")[0]
    size_by_letter: dict[str, int] = {}
    for letters, operand in zip(equation.split(","), inputs, strict=True):
        size_by_letter.update(zip(letters, map(int, operand.shape), strict=True))
    return 2 * math.prod(size_by_letter.values()) if len(inputs) > 1 else 0


def _recurrent(inputs: Any, attributes: dict[str, Any], outputs: Any) -> int:
    """Count `CudnnRNN`, V2 or V3, whose inputs are the sequences, the first states h and c, and all parameters."""
    sequences, state_h, state_c, parameters = (tensor.shape for tensor in inputs[:4])
    batch = sequences[1 if attributes.get("time_major", True) else 0]
    cell_count = math.prod(map(int, state_h)) // (int(batch) * int(state_h[-1]))
    mode = _text(attributes["rnn_mode"])
    # Only an LSTM has a state c; with a projection c alone has the width of the gates.
    hidden = int(state_c[-1] if mode == "lstm" else state_h[-1])
    return recurrent_flops(sequences, flat_matrix_elements(math.prod(map(int, parameters)), mode, hidden, cell_count))


def _twice(shape: Any) -> int:
    """Two FLOPs for each output element."""
    return 2 * math.prod(map(int, shape))


FLOPS: dict[str, Callable[[Any, dict[str, Any], Any], int]] = {
    "MatMul": _product,
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _transposed_convolution,
    "DepthwiseConv2dNative": _depthwise,
    "Einsum": _einsum,
    "CudnnRNN": _recurrent,
    "CudnnRNNV2": _recurrent,
    "CudnnRNNV3": _recurrent,
}
