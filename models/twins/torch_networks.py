"""The twins' networks as PyTorch modules, and the exchange of weights with a Keras model.

The modules define their trained parameters in the order of the Keras model's trainable weights, so that the two lists
correspond. Images arrive with their channels last; the convolutions get them as PyTorch's layout, in the memory format
`channels_last`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from keras_matrix.models.twins.interface import drop_rates, heads_of


class DenseNetwork(nn.Module):  # type: ignore[misc]
    """Dense layers with ReLU and dropout, and a dense layer of classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        sizes = [tuple(one.shape) for one in model.trainable_variables[::2]]
        hidden = [
            nn.Sequential(nn.Linear(*size), nn.ReLU(), nn.Dropout(rate))
            for size, rate in zip(sizes[:-1], drop_rates(model), strict=True)
        ]
        self.layers = nn.Sequential(*hidden, nn.Linear(*sizes[-1]))

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        return self.layers(x)


class ConvolutionalNetwork(nn.Module):  # type: ignore[misc]
    """Two pairs of convolutions, each pooled, then a dense layer, and one of classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        kernels = [tuple(one.shape) for one in model.trainable_variables[::2]]
        first, second, last = drop_rates(model)
        a, b, c, d = (
            nn.Conv2d(size[2], size[3], 3, padding=padding)
            for size, padding in zip(kernels[:4], (1, 0, 1, 0), strict=True)
        )
        self.convolutions = nn.Sequential(
            *(a, nn.ReLU(), b, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(first)),
            *(c, nn.ReLU(), d, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(second)),
        )
        self.head = nn.Sequential(nn.Linear(*kernels[4]), nn.ReLU(), nn.Dropout(last), nn.Linear(*kernels[5]))

    def forward(self, x: Any) -> Any:
        """Return the logits; the features of a pixel stay together, as in Keras."""
        x = self.convolutions(x.permute(0, 3, 1, 2))
        return self.head(x.permute(0, 2, 3, 1).flatten(1))


class RecurrentNetwork(nn.Module):  # type: ignore[misc]
    """`nn.LSTM` and a dense layer on its last state.

    Of its two biases one is 0 and not trained: Keras has one, which would otherwise move twice as far.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        features, units = model.trainable_variables[0].shape[0], model.trainable_variables[1].shape[0]
        self.lstm = nn.LSTM(features, units, batch_first=True)
        nn.init.zeros_(self.lstm.bias_hh_l0).requires_grad_(False)
        self.head = nn.Linear(units, model.trainable_variables[-1].shape[0])

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        _, (hidden, _) = self.lstm(x)
        return self.head(hidden[0])


class Block(nn.Module):  # type: ignore[misc]
    """A causal transformer block that normalises before its layers."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Any) -> Any:
        """(batch, length, width) to the same."""
        normal = self.norm(x)
        parts = [
            project(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Decoder(nn.Module):  # type: ignore[misc]
    """A causal transformer, predicting the next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        weights = model.trainable_variables
        (tokens, width), (length, _) = weights[0].shape, weights[1].shape
        hidden = weights[14].shape[1]
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Parameter(torch.empty(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads_of(model), hidden) for _ in range((len(weights) - 5) // 16)))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens: Any) -> Any:
        """Return the logits of each position."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


NETWORKS: dict[str, Callable[[Any], nn.Module]] = {
    "mnist_mlp": DenseNetwork,
    "cifar10_cnn": ConvolutionalNetwork,
    "lstm": RecurrentNetwork,
    "lstm_text_generation": RecurrentNetwork,
    "decoder_lm": Decoder,
}


def pairs(network: nn.Module, model: Any) -> list[tuple[nn.Parameter, Any, bool]]:
    """Return each trained parameter with the Keras weight it corresponds to, and whether Keras has its transpose."""
    tables = [network.embedding.weight, network.positions] if isinstance(network, Decoder) else []
    trained = [one for one in _in_order(network) if one.requires_grad]
    return [
        (one, weight, one.ndim > 1 and not any(one is table for table in tables))
        for one, weight in zip(trained, model.trainable_variables, strict=True)
    ]


def _in_order(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in the order of their use: a module lists its own before those of its parts."""
    found = list(network.parameters())
    return [found[1], found[0], *found[2:]] if isinstance(network, Decoder) else found


def from_keras(value: Any, shape: tuple[int, ...], transposed: bool) -> Any:
    """Return a Keras weight in PyTorch's layout: (in, out) as (out, in), (height, width, in, out) as (out, in, ...)."""
    if not transposed:
        return np.reshape(value, shape)
    if len(shape) == 4:
        return np.transpose(value, (3, 2, 0, 1))
    return np.reshape(value, shape[::-1]).T


def to_keras(value: Any, shape: tuple[int, ...], transposed: bool) -> Any:
    """Return a PyTorch weight in Keras's layout."""
    if not transposed:
        return np.reshape(value, shape)
    if value.ndim == 4:
        return np.transpose(value, (2, 3, 1, 0))
    return np.reshape(value.T, shape)
