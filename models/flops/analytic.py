"""Counts FLOPs by arithmetic over the shapes of a model's layers, without running or tracing it.

Supports dense, convolutional, depthwise, separable and recurrent layers; a model with another layer that multiplies
matrices has no figure. Two FLOPs per multiply-add, padding included; bias, activation, normalisation and pooling are
not counted. Source: Goodfellow, Bengio, Courville, "Deep Learning", 2016, chapters 9 and 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

Shape = tuple[int, ...]

GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
# Layers with weights that multiply no matrix.
FREE = (layers.BatchNormalization, layers.LayerNormalization, layers.Embedding)


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
    found: list[LayerFlops] = []
    for layer in model.layers:
        if not layer.weights:
            continue
        flops = NOTHING if isinstance(layer, FREE) else _flops(layer)
        if flops is None:
            return None
        found.append(flops)
    return found


def forward_flops(layers_: list[LayerFlops]) -> int:
    """Return the FLOPs of one sample's forward pass."""
    return sum(layer.forward for layer in layers_)


def train_flops(layers_: list[LayerFlops]) -> int:
    """Return the FLOPs of forward and backward: three times forward, without the first input's gradient."""
    return 3 * forward_flops(layers_) - (layers_[0].input_gradient if layers_ else 0)


def _flops(layer: Any) -> LayerFlops | None:
    if len(layer._inbound_nodes) != 1 or not isinstance(layer.input, keras.KerasTensor):
        return None
    taken, made = tuple(layer.input.shape[1:]), tuple(layer.output.shape[1:])
    for kind, formula in FORMULAS:
        if type(layer) is kind:
            return formula(layer, taken, made)
    return None


def _dense(layer: Any, taken: Shape, made: Shape) -> LayerFlops:
    flops = 2 * taken[-1] * math.prod(made)
    return LayerFlops(flops, flops)


def _convolution(layer: Any, taken: Shape, made: Shape) -> LayerFlops:
    flops = 2 * math.prod(layer.kernel_size) * taken[-1] // layer.groups * math.prod(made)
    return LayerFlops(flops, flops)


def _depthwise(layer: Any, taken: Shape, made: Shape) -> LayerFlops:
    flops = 2 * math.prod(layer.kernel_size) * math.prod(made)
    return LayerFlops(flops, flops)


def _separable(layer: Any, taken: Shape, made: Shape) -> LayerFlops:
    middle = 2 * math.prod(made[:-1]) * taken[-1] * layer.depth_multiplier
    depthwise = middle * math.prod(layer.kernel_size)
    return LayerFlops(depthwise + middle * made[-1], depthwise)


def _recurrent(layer: Any, taken: Shape, made: Shape) -> LayerFlops:
    """The input's gradient covers the features at every step, and the state before the first."""
    steps, features = taken
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
