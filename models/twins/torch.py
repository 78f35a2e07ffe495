"""The rungs on PyTorch: `nn.Module`, `torch.optim`, and a function of one step.

If Keras compiles its step, so do the rungs with Keras's optimizer; the others compile the network, as is usual.

`torch.optim.RMSprop` adds epsilon to the square root, Keras inside it, which trains differently where gradients are
small: `TorchRMSprop` here is Keras's formula, by the same `torch._foreach` operations that PyTorch's uses on a GPU.

The networks are PyTorch modules, which exchange weights with a Keras model. They define their trained parameters in the
order of the Keras model's trainable weights, so that the two lists correspond. Images arrive with their channels last;
the convolutions get them as PyTorch's layout, in the memory format `channels_last`.

Greedy generation: modules without gradients, and a loop in Python over decoding steps. Nothing is compiled, as in
KerasHub. A step attends to the filled part of the cache only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from keras_matrix.models.twins import generation, interface
from keras_matrix.models.twins.generation import EPSILON, Affine, Continue, Weights, weights_of
from keras_matrix.models.twins.interface import (
    Batch,
    Compiled,
    KerasLoop,
    Native,
    Rung,
    drop_rates,
    ends_in_softmax,
    heads_of,
    optimizer_of,
)


def rungs(model: Any, workload: str, compiled: Compiled, seed: int) -> dict[str, Callable[[], Rung]]:
    """Return what makes each rung for a Keras model of the workload."""
    return {
        "loop": lambda: _KerasLoop(model),
        "no_metrics": lambda: _KerasLayers(model, compiled, None),
        "layers": lambda: _KerasLayers(model, compiled, _own_optimizer(model, _weights(model))),
        "native": lambda: _Native(model, workload, compiled),
    }


class _KerasLoop(KerasLoop):
    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.model.train()

    def step(self, batch: Batch) -> None:
        self.model.train_function([batch])

    def end_epoch(self) -> dict[str, float]:
        logs = super().end_epoch()
        self.model.eval()
        return logs


class _Steps:
    """A training step that is a function of a batch and returns the loss."""

    counts = False
    _train: Callable[[Any, Any], Any]

    def __init__(self, model: Any) -> None:
        self._model, self._steps = model, 0
        self._loss: Any = 0.0

    def begin_epoch(self) -> None:
        self._loss, self._steps = 0.0, 0

    def step(self, batch: Batch) -> None:
        self._loss += self._train(*batch)
        self._steps += 1

    def end_epoch(self) -> dict[str, float]:
        return {"loss": float(self._loss) / self._steps}

    def write_back(self) -> None:
        pass


class _KerasLayers(_Steps):
    """Keras's layers and loss in a step without metrics, with its own optimizer or one of PyTorch."""

    def __init__(self, model: Any, compiled: Compiled, own_network: Any) -> None:
        super().__init__(model)
        self._own = own_network
        weights = model.trainable_weights

        def loss_of(x: Any, y: Any) -> Any:
            return model.compute_loss(x, y, model(x, training=True), training=True)

        forward = torch.compile(loss_of) if compiled.jit and own_network is not None else loss_of

        def train_step(x: Any, y: Any) -> Any:
            model.zero_grad()
            loss = forward(x, y)
            loss.backward()
            if own_network is None:
                with torch.no_grad():
                    model.optimizer.apply([weight.value.grad for weight in weights], weights)
            else:
                own_network.step()
            return loss.detach()

        self._train = torch.compile(train_step) if compiled.jit and own_network is None else train_step

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self._model.train()

    def updates(self) -> int:
        return int(self._model.optimizer.iterations.value) if self._own is None else _updates_of(self._own)


class _Native(_Steps):
    """The twin."""

    def __init__(self, model: Any, workload: str, compiled: Compiled) -> None:
        super().__init__(model)
        network, self._pairs = _copy_of(model, workload)
        self._optimizer = optimizer = _own_optimizer(model, [parameter for parameter, _, _ in self._pairs])
        forward = torch.compile(network) if compiled.jit else network
        network.train()

        def train_step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = _loss_of(forward(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self._train = train_step

    def updates(self) -> int:
        return _updates_of(self._optimizer)

    def write_back(self) -> None:
        for parameter, weight, is_transposed in self._pairs:
            value = to_keras(parameter.detach().cpu().numpy(), tuple(weight.shape), is_transposed)
            weight.assign(np.ascontiguousarray(value))


def called(model: Any, workload: str, compiled: Compiled, training: bool) -> Native:
    """Return the twin of a Keras model of the workload, called; its gradients with dropout if `training`."""
    network, paired = _copy_of(model, workload)
    parameters = [parameter for parameter, _, _ in paired]
    has_softmax = ends_in_softmax(model)

    def outputs(x: Any) -> Any:
        return network(x).softmax(-1) if has_softmax else network(x)

    answer, logits_of = (torch.compile(outputs), torch.compile(network)) if compiled.jit else (outputs, network)

    def forward(x: Any) -> Any:
        with torch.no_grad():
            return answer(x)

    def gradients(x: Any, y: Any) -> tuple[Any, Sequence[Any], Any]:
        logits = logits_of(x)
        loss = _loss_of(logits, y)
        return loss.detach(), torch.autograd.grad(loss, parameters), logits.detach()

    def in_keras(values: Sequence[Any]) -> list[Any]:
        return [
            to_keras(value.cpu().numpy(), tuple(weight.shape), is_transposed)
            for value, (_, weight, is_transposed) in zip(values, paired, strict=True)
        ]

    network.train(training)
    return Native(forward, gradients, in_keras)


def _copy_of(model: Any, workload: str) -> tuple[nn.Module, list[tuple[nn.Parameter, Any, bool]]]:
    """Return the network of a workload with the weights of a Keras model, and the weights of both in pairs."""
    network = NETWORKS[workload](model).to(model.trainable_variables[0].value.device)
    paired = pairs(network, model)
    with torch.no_grad():
        for parameter, weight, is_transposed in paired:
            value = from_keras(weight.numpy(), tuple(parameter.shape), is_transposed)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return network, paired


def _loss_of(logits: Any, y: Any) -> Any:
    if y.ndim < logits.ndim:
        return functional.cross_entropy(logits.flatten(0, -2), y.flatten().long())
    return functional.cross_entropy(logits, y)


class TorchRMSprop(torch.optim.Optimizer):  # type: ignore[misc]
    """Keras's RMSprop as an optimizer of PyTorch."""

    def __init__(self, parameters: Sequence[Any], options: interface.RMSprop) -> None:
        super().__init__(parameters, {})
        self.options, self.count = options, 0
        self._parameters = list(parameters)
        self._squares = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Update the parameters."""
        options = self.options
        gradients: Any = [parameter.grad for parameter in self._parameters]
        rate = options.rate / (1 + options.decay * self.count)
        torch._foreach_mul_(self._squares, options.rho)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - options.rho)
        square_roots = torch._foreach_add(self._squares, options.epsilon)
        torch._foreach_sqrt_(square_roots)
        torch._foreach_addcdiv_(self._parameters, gradients, square_roots, -rate)
        self.count += 1


def _own_optimizer(model: Any, parameters: Sequence[Any]) -> Any:
    """Return PyTorch's optimizer of these parameters, with the options of the model's."""
    options = optimizer_of(model)
    if isinstance(options, interface.RMSprop):
        return TorchRMSprop(parameters, options)
    return torch.optim.AdamW(
        parameters,
        options.rate,
        (options.beta_1, options.beta_2),
        options.epsilon,
        options.weight_decay,
    )


def _updates_of(optimizer: Any) -> int:
    if isinstance(optimizer, TorchRMSprop):
        return optimizer.count
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def _weights(model: Any) -> list[Any]:
    return [weight.value for weight in model.trainable_weights]


class DenseNetwork(nn.Module):  # type: ignore[misc]
    """Dense layers with ReLU and dropout, and a dense layer of classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        shapes = [tuple(variable.shape) for variable in model.trainable_variables[::2]]
        hidden_layers = [
            nn.Sequential(nn.Linear(*shape), nn.ReLU(), nn.Dropout(rate))
            for shape, rate in zip(shapes[:-1], drop_rates(model), strict=True)
        ]
        self.layers = nn.Sequential(*hidden_layers, nn.Linear(*shapes[-1]))

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        return self.layers(x)


class ConvolutionalNetwork(nn.Module):  # type: ignore[misc]
    """Two pairs of convolutions, each pooled, then a dense layer, and one of classes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        kernels = [tuple(variable.shape) for variable in model.trainable_variables[::2]]
        first_rate, second_rate, last_rate = drop_rates(model)
        a, b, c, d = (
            nn.Conv2d(shape[2], shape[3], 3, padding=padding)
            for shape, padding in zip(kernels[:4], (1, 0, 1, 0), strict=True)
        )
        self.convolutions = nn.Sequential(
            *(a, nn.ReLU(), b, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(first_rate)),
            *(c, nn.ReLU(), d, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(second_rate)),
        )
        self.head = nn.Sequential(nn.Linear(*kernels[4]), nn.ReLU(), nn.Dropout(last_rate), nn.Linear(*kernels[5]))

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


class CausalBlock(nn.Module):  # type: ignore[misc]
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
        attention_inputs = [
            project(normal).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(
            attention_inputs[0], attention_inputs[1], attention_inputs[2], is_causal=True
        )
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
        self.blocks = nn.Sequential(
            *(CausalBlock(width, heads_of(model), hidden) for _ in range((len(weights) - 5) // 16))
        )
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
    trained = [parameter for parameter in _in_order(network) if parameter.requires_grad]
    return [
        (parameter, weight, parameter.ndim > 1 and not any(parameter is table for table in tables))
        for parameter, weight in zip(trained, model.trainable_variables, strict=True)
    ]


def _in_order(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in the order of their use: a module lists its own before those of its parts."""
    parameters = list(network.parameters())
    return [parameters[1], parameters[0], *parameters[2:]] if isinstance(network, Decoder) else parameters


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


def continuing(model: Any, prompt_length: int, compiled: Compiled) -> Continue:
    """Return native generation with a copy of the model's weights."""
    device = model.backbone.weights[0].value.device
    decoder = CachedDecoder(weights_of(model), model.backbone.num_heads).to(device).eval()

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def generate(prompts: Any) -> Any:
        sequence, length = prompts.clone(), prompts.shape[1]
        caches = decoder.empty_caches(len(prompts), length)
        sequence[:, prompt_length] = decoder(sequence[:, :prompt_length], caches, 0)
        for position in range(prompt_length, length - 1):
            sequence[:, position + 1] = decoder(sequence[:, position : position + 1], caches, position)
        return sequence.cpu().numpy()

    continuation: Continue = generate
    return continuation


class CachedBlock(nn.Module):  # type: ignore[misc]
    """A block that normalises before its layers, and attends to a cache."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = (nn.LayerNorm(width, eps=EPSILON) for _ in range(2))
        self.projection, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Any, cache: Any, begin: int) -> Any:
        """(batch, length, width) to the same; fills (2, batch, heads, max_length, head width) from `begin`."""
        end = begin + x.shape[1]
        projected = self.projection(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        cache[0, :, :, begin:end], cache[1, :, :, begin:end] = key, value
        keys, values = cache[:, :, :, :end]
        # After the prompt a step has one query, which sees all that is filled.
        attention = functional.scaled_dot_product_attention(query, keys, values, is_causal=begin == 0)
        x = x + self.joined(attention.transpose(1, 2).flatten(2))
        return x + self.out(functional.gelu(self.hidden(self.feed_norm(x)), approximate="tanh"))


class CachedDecoder(nn.Module):  # type: ignore[misc]
    """GPT-2, predicting the next token."""

    def __init__(self, weights: Weights, heads: int) -> None:
        super().__init__()
        (tokens, width), (length, _) = weights.tokens.shape, weights.positions.shape
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            CachedBlock(width, heads, block_weights.hidden.bias.size) for block_weights in weights.blocks
        )
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self._fill(weights)

    def forward(self, tokens: Any, caches: Any, begin: int) -> Any:
        """Return the token after each row of (batch, length) ones, which are at `begin`."""
        x = self.tokens(tokens) + self.positions.weight[begin : begin + tokens.shape[1]]
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache, begin)
        return functional.linear(self.norm(x[:, -1]), self.tokens.weight).argmax(-1)

    def empty_caches(self, rows: int, length: int) -> Any:
        """Return the caches of all blocks."""
        table = self.positions.weight
        return table.new_empty(len(self.blocks), 2, rows, self.heads, length, table.shape[1] // self.heads)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _fill(self, weights: Weights) -> None:
        self.tokens.weight.copy_(torch.from_numpy(weights.tokens))
        self.positions.weight.copy_(torch.from_numpy(weights.positions))
        _copy(weights.norm, self.norm)
        for block, own_block in zip(weights.blocks, self.blocks, strict=True):
            for name in generation.BlockWeights._fields:
                _copy(getattr(block, name), getattr(own_block, name))


def _copy(affine: Affine, module: Any) -> None:
    """Copy a matrix (in, out), whose transpose PyTorch has, or a normalisation, and its bias."""
    module.weight.copy_(torch.from_numpy(affine.weight.T))
    module.bias.copy_(torch.from_numpy(affine.bias))
