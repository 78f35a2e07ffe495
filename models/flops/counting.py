"""Counts one workload's FLOPs as they run, and the elements that a step must move. Needs Keras on some backend.

`forward_flops` counts by arithmetic over the shapes of a model's layers, without running or tracing it. It supports
dense, convolutional, depthwise, separable and recurrent layers; a model with another layer that multiplies
matrices has no figure. Two FLOPs per multiply-add, padding included; bias, activation, normalisation and pooling are
not counted. Source: Goodfellow, Bengio, Courville, "Deep Learning", 2016, chapters 9 and 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from keras_matrix.models import flops
from keras_matrix.models.registry import load, workloads
from keras_matrix.models.workload import Built, Request
from keras_matrix.records.instruments.work import FlopCheck, Target, Work

Shape = tuple[int, ...]

GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
# Layers with weights that multiply no matrix.
FREE = (layers.BatchNormalization, layers.LayerNormalization, layers.Embedding)


def work(target: Target) -> Work:
    """Build the workload and count it on one sample. Raises the workload's own errors."""
    workload = _built(target)
    model = workload.model
    x, _ = workload.samples(1, 0)
    with recording(model) as kept_elements:
        forward = counter().forward(model, x)
    model.optimizer.build(model.trainable_variables)
    return Work(
        workload=target.workload,
        params=target.params,
        forward_flops_per_sample=forward,
        weight_elements=_elements(model.weights),
        trainable_elements=_elements(model.trainable_variables),
        lookup_elements=_elements(
            w for layer in leaves(model) if isinstance(layer, keras.layers.Embedding) for w in layer.weights
        ),
        slot_elements=_elements(slots(model.optimizer)),
        input_elements_per_sample=_elements(keras.tree.flatten(x)),
        kept_elements_per_sample=sum(kept_elements.values()),
        counted_by=f"{keras.backend.backend()}: operations as run",
    )


def slots(optimizer: Any) -> list[Any]:
    """Return an optimiser's variables for the weights that it updates, without its counters and rates (scalars)."""
    return [variable for variable in optimizer.variables if len(variable.shape)]


def check(target: Target, batch_size: int | None) -> FlopCheck:
    """Count one batch in every way available on this backend."""
    workload = _built(target)
    model = workload.model
    batch = batch_size or workloads()[target.workload].batch_size
    x, y = workload.samples(batch, 0)
    flops_by_layer = layers_flops(model)
    counted_flops = counter().forward(model, x)
    tool = counter().framework(model, x, y)
    return FlopCheck(
        workload=target.workload,
        params=target.params,
        backend=keras.backend.backend(),
        batch_size=batch,
        analytic=None if flops_by_layer is None else batch * forward_flops(flops_by_layer),
        analytic_train=None if flops_by_layer is None else batch * train_flops(flops_by_layer),
        counted=counted_flops,
        framework=tool.forward_flops,
        framework_train=tool.train_flops,
        framework_train_bytes=tool.train_bytes,
        loops=any(isinstance(layer, keras.layers.RNN) for layer in leaves(model)),
        parameters=_elements(model.trainable_variables),
        tool=counter().TOOL,
    )


def counter() -> flops.Counter:
    """Return the counter of the backend that Keras runs on."""
    return flops.load(keras.backend.backend())


@contextmanager
def recording(model: Any) -> Iterator[dict[int, int]]:
    """Record the input elements of each layer with weights; for a recurrent one also its state per step.

    The backward pass needs these inputs again to compute the weights' gradients.
    """
    elements: dict[int, int] = {}
    recorded_layers = list(leaves(model))
    for layer in recorded_layers:
        # On the instance, bypassing Keras's attribute tracking: class and weights remain unchanged.
        layer.__dict__["call"] = _noting(layer, elements)
    try:
        yield elements
    finally:
        for layer in recorded_layers:
            del layer.__dict__["call"]


def _noting(layer: Any, elements: dict[int, int]) -> Any:
    plain_call = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = keras.tree.flatten(args[0] if args else next(iter(kwargs.values())))
        elements[id(layer)] = _elements(inputs)
        if isinstance(layer, keras.layers.RNN):
            elements[id(layer)] += int(inputs[0].shape[1]) * int(layer.units)
        return plain_call(*args, **kwargs)

    return call


def _built(target: Target) -> Built:
    keras.backend.clear_session()
    return load(target.workload)(Request(target.params, "synthetic", None))


def _elements(arrays: Any) -> int:
    return sum(math.prod(array.shape) for array in arrays)


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """One layer's FLOPs on one sample: of the forward pass, and of its input's gradient."""

    forward: int
    input_gradient: int


# As the first layer, it still needs the gradient of its output: the next layer computes that of its input.
NOTHING = LayerFlops(0, 0)


def layers_flops(model: Any) -> list[LayerFlops] | None:
    """Return the FLOPs of each layer that has weights, in the model's order.

    None if a layer is not supported or is used twice, or if the model is not a graph of layers with known shapes.
    """
    if not hasattr(model, "operations"):
        return None
    layer_flops: list[LayerFlops] = []
    for layer in model.layers:
        if not layer.weights:
            continue
        flops = NOTHING if isinstance(layer, FREE) else _flops(layer)
        if flops is None:
            return None
        layer_flops.append(flops)
    return layer_flops


def forward_flops(layers_: list[LayerFlops]) -> int:
    """Return the FLOPs of one sample's forward pass."""
    return sum(layer.forward for layer in layers_)


def train_flops(layers_: list[LayerFlops]) -> int:
    """Return the FLOPs of forward and backward: three times forward, without the first input's gradient."""
    return 3 * forward_flops(layers_) - (layers_[0].input_gradient if layers_ else 0)


def _flops(layer: Any) -> LayerFlops | None:
    if len(layer._inbound_nodes) != 1 or not isinstance(layer.input, keras.KerasTensor):
        return None
    input_shape, output_shape = tuple(layer.input.shape[1:]), tuple(layer.output.shape[1:])
    for kind, formula in FORMULAS:
        if type(layer) is kind:
            return formula(layer, input_shape, output_shape)
    return None


def _dense(layer: Any, input_shape: Shape, output_shape: Shape) -> LayerFlops:
    flops = 2 * input_shape[-1] * math.prod(output_shape)
    return LayerFlops(flops, flops)


def _convolution(layer: Any, input_shape: Shape, output_shape: Shape) -> LayerFlops:
    flops = 2 * math.prod(layer.kernel_size) * input_shape[-1] // layer.groups * math.prod(output_shape)
    return LayerFlops(flops, flops)


def _depthwise(layer: Any, input_shape: Shape, output_shape: Shape) -> LayerFlops:
    flops = 2 * math.prod(layer.kernel_size) * math.prod(output_shape)
    return LayerFlops(flops, flops)


def _separable(layer: Any, input_shape: Shape, output_shape: Shape) -> LayerFlops:
    middle = 2 * math.prod(output_shape[:-1]) * input_shape[-1] * layer.depth_multiplier
    depthwise = middle * math.prod(layer.kernel_size)
    return LayerFlops(depthwise + middle * output_shape[-1], depthwise)


def _recurrent(layer: Any, input_shape: Shape, output_shape: Shape) -> LayerFlops:
    """The input's gradient covers the features at every step, and the state before the first."""
    steps, features = input_shape
    per_feature = 2 * GATES[type(layer).__name__] * layer.units
    forward = steps * per_feature * (features + layer.units)
    return LayerFlops(forward, per_feature * (steps * features + layer.units))


FORMULAS: tuple[tuple[type, Callable[[Any, Shape, Shape], LayerFlops]], ...] = (
    (layers.Dense, _dense),
    (layers.Conv1D, _convolution),
    (layers.Conv2D, _convolution),
    (layers.DepthwiseConv2D, _depthwise),
    (layers.SeparableConv2D, _separable),
    (layers.LSTM, _recurrent),
    (layers.GRU, _recurrent),
    (layers.SimpleRNN, _recurrent),
)


def leaves(model: Any) -> Iterator[Any]:
    """Yield the layers with their own weights, each once, even if two layers contain it; a recurrent one is one."""
    yield from {id(layer): layer for layer in _leaves(model)}.values()


def _leaves(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers(include_self=False, recursive=False):
        inner = [] if isinstance(layer, layers.RNN) else list(_leaves(layer))
        if inner:
            yield from inner
        elif layer.weights:
            yield layer
