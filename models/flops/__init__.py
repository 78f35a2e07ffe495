"""Counts the work of a workload from the built model, in three independent ways for a forward pass:

  analytic    arithmetic over the shapes of dense, convolutional and recurrent layers (`counting.py`): no backend
  counted     two FLOPs per multiply-add of every matrix product and convolution that runs, loops included; the same
              definition on every backend (`forward` in `jax.py`, `tensorflow.py`, `torch.py`)
  framework   the result of the backend's own tool (`framework` there), with its own definition

Each backend's file offers `forward(model, x)`, `framework(model, x, y)` and `TOOL`.

A complete recurrent layer or attention in one kernel, as on GPUs, has no matrix product that a counter finds, so
its count is computed from its shapes. It equals that of the unfused form of the same layer. Sources: cuDNN's
documentation of `cudnnRNNForward` (gates and parameters of each cell) and of scaled dot-product attention; Vaswani
et al., "Attention is all you need", 2017, section 3.2.1.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# cuDNN adds one bias to the input's product and one to the state's.
BIASES_PER_GATE = 2


@dataclass(frozen=True, slots=True)
class ToolCount:
    """The counts of a framework's own tool for one batch; None if not available."""

    forward_flops: float | None
    train_flops: float | None
    train_bytes: float | None = None


class Counter(Protocol):
    """The interface of a backend's file."""

    TOOL: str

    def forward(self, model: Any, x: Any) -> int:
        """Return the FLOPs of matrix products and convolutions of one forward pass over `x`."""

    def framework(self, model: Any, x: Any, y: Any) -> ToolCount:
        """Return the counts of the framework's own tool for a forward pass and for a training step."""


def load(backend: str) -> Counter:
    """Import a backend's counter and return it."""
    return cast(Counter, importlib.import_module(f"keras_matrix.models.flops.{backend}"))


def recurrent_flops(inputs: Sequence[int], matrix_elements: int) -> int:
    """Return the FLOPs of recurrent layers over `inputs`, whose last axis is the features.

    Every step of every sample uses each element of each weight matrix once: of all layers, directions, projections.
    """
    return 2 * math.prod(map(int, inputs[:-1])) * matrix_elements


def matrix_elements(weights: Iterable[Sequence[int]]) -> int:
    """Return the elements of all matrices among these shapes; biases have one axis."""
    return sum(math.prod(map(int, shape)) for shape in weights if len(shape) == 2)


def flat_matrix_elements(parameters: int, mode: str, hidden: int, cells: int) -> int:
    """Return the elements of the weight matrices in cuDNN's flat buffer of `parameters` elements.

    `cells` is layers times directions; `mode` is cuDNN's name of the cell. Raises `KeyError` for an unknown mode.
    """
    return parameters - BIASES_PER_GATE * GATES[mode] * hidden * cells


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Return the FLOPs of the two products of attention, from shapes (batch, heads, positions, features).

    Masked positions count, as in the unfused form.
    """
    batch, heads, queries, features = map(int, query)
    return 2 * batch * heads * queries * int(key[2]) * (features + int(value[3]))


@contextmanager
def around_thrown_away_steps(make_context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter the context for every step of a loop whose output is discarded.

    On TensorFlow and PyTorch, Keras runs a loop's first step once more before the loop, to find the shape of its
    output. That step is not part of the model's work, and a compiled training step omits it.
    """
    from keras.src import backend  # the other functions need no Keras

    plain_rnn = backend.rnn

    def rnn(step: Any, *args: Any, unroll: bool = False, **kwargs: Any) -> Any:
        seen = unroll  # an unrolled loop runs each step once

        def watched(*inputs: Any) -> Any:
            nonlocal seen
            if seen:
                return step(*inputs)
            seen = True
            with make_context():
                return step(*inputs)

        return plain_rnn(watched, *args, unroll=unroll, **kwargs)

    backend.rnn = rnn
    try:
        yield
    finally:
        backend.rnn = plain_rnn
