"""FLOPs of fused operations: a complete recurrent layer or attention in one kernel, as on GPUs.

A counter finds no matrix product in such an operation, so the count is computed from the operation's shapes. It equals
that of the unfused form of the same layer: two FLOPs per multiply-add, without element-wise operations. Pure functions.

Sources: cuDNN's documentation of `cudnnRNNForward` (gates and parameters of each cell) and of scaled dot-product
attention; Vaswani et al., "Attention is all you need", 2017, section 3.2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# cuDNN adds one bias to the input's product and one to the state's.
BIASES_PER_GATE = 2


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
