"""PyTorch counts while it runs: its FlopCounterMode covers every dispatched operation, also backward ones.

It counts matrix products and convolutions, two FLOPs per multiply-add, without element-wise operations: the same
definition as ours, so that there is one count, without bytes. It has no formula for fused recurrent layers (cuDNN's and
MIOpen's on a GPU, oneDNN's on a CPU) and would count them as 0: this module adds the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from keras_matrix.models.flops import ToolCount, around_thrown_away_steps, matrix_elements, recurrent_flops

TOOL = "torch.utils.flop_counter.FlopCounterMode"


def forward(model: Any, x: Any) -> int:
    """Count one forward pass."""
    with without_gradients(model):
        return counted(lambda: model(x, training=False))


@contextmanager
def without_gradients(model: Any) -> Iterator[None]:
    """Compute no gradients, and mark no weight for them.

    Under `no_grad` alone the counter's hooks fail for a layer that returns a view of its weights (GPT-2's positions).
    """
    marked_weights = [variable.value for variable in model.variables if variable.value.requires_grad]
    for weight in marked_weights:
        weight.requires_grad_(False)
    try:
        with torch.no_grad():
            yield
    finally:
        for weight in marked_weights:
            weight.requires_grad_(True)


def framework(model: Any, x: Any, y: Any) -> ToolCount:
    """Count a forward pass, then a forward and backward pass through the model's own loss."""

    def step() -> None:
        model.zero_grad()
        targets = keras.tree.map_structure(torch.as_tensor, y)
        model.compute_loss(x=x, y=targets, y_pred=model(x, training=True)).backward()

    return ToolCount(forward(model, x), counted(step))


def counted(work: Callable[[], object]) -> int:
    """Return the FLOPs of `work`."""
    # The counter would count the fused attention of the CPU as 0: the plain formula runs instead.
    thrown_away = 0

    @contextmanager
    def noted() -> Iterator[None]:
        nonlocal thrown_away
        flops_before = counter.get_total_flops()
        yield
        thrown_away += counter.get_total_flops() - flops_before

    counter = FlopCounterMode(display=False, custom_mapping=RECURRENT)
    with sdpa_kernel(SDPBackend.MATH), counter, around_thrown_away_steps(noted):
        work()
    return int(counter.get_total_flops() - thrown_away)


Shape = Sequence[int]


def _listed(inputs: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    return recurrent_flops(inputs, matrix_elements(weights))


def _listed_backward(inputs: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    # Both gradients are always computed: cuDNN computes those of the weights from results of those of the inputs.
    return 2 * _listed(inputs, weights)


def _onednn(inputs: Shape, *arguments: Any, **_: Any) -> int:
    return _listed(inputs, arguments[:4])


def _onednn_backward(inputs: Shape, *arguments: Any, **_: Any) -> int:
    return 2 * _onednn(inputs, *arguments)


ATEN = torch.ops.aten
# The counter gives these functions shapes in place of tensors.
RECURRENT = {
    ATEN._cudnn_rnn: _listed,
    ATEN._cudnn_rnn_backward: _listed_backward,
    ATEN.miopen_rnn: _listed,
    ATEN.miopen_rnn_backward: _listed_backward,
    ATEN.mkldnn_rnn_layer: _onednn,
    ATEN.mkldnn_rnn_layer_backward: _onednn_backward,
}
