"""Counting by arithmetic: what the shapes of a model's layers say, without running or tracing it.

Knows dense, convolutional, depthwise, separable and recurrent layers; for a model with a layer that multiplies
matrices in another way it gives no figure. Two FLOPs per multiply-add; bias, activation, normalisation and pooling are
not counted, nor is it asked whether a factor is padding. Source: Goodfellow, Bengio, Courville, "Deep Learning", 2016,
chapters 9 and 10.
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
# Layers with weights of their own that multiply no matrix.
FREE = (layers.BatchNormalization, layers.LayerNormalization, layers.Embedding)


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """One layer's FLOPs on one sample: going forward, and those of its input's gradient."""

    forward: int
    input_gradient: int


# Standing first, it still needs the gradient of what comes out of it: the next layer computes its input's.
NOTHING = LayerFlops(0, 0)


def layers_flops(model: Any) -> list[LayerFlops] | None:
    """Return the FLOPs of each layer that has weights, in the model's order.

    None where some layer is not among those known here, is used twice, or the model is no graph of layers, so that
    shapes are not told.
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
    """Return the FLOPs of one sample going forward."""
    return sum(layer.forward for layer in layers_)


def train_flops(layers_: list[LayerFlops]) -> int:
    """Return the FLOPs of forward and backward: three times forward, but nobody needs the first input's gradient."""
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
    """Of the input's gradient: that of the features at every step, and of the state before the first."""
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
    """Yield the layers that hold weights themselves; a recurrent layer counts as one."""
    for layer in model._flatten_layers(include_self=False, recursive=False):
        inner = [] if isinstance(layer, layers.RNN) else list(leaves(layer))
        if inner:
            yield from inner
        elif layer.weights:
            yield layer
