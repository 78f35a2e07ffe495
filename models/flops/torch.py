"""PyTorch counts as it runs: its FlopCounterMode sees every operation that is dispatched, backward ones too.

It counts matrix products and convolutions, two FLOPs per multiply-add, and nothing element-wise: the same definition
as ours, so that there is one count here, and it says nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from models.flops import ToolCount
from models.flops.loops import around_thrown_away_steps

TOOL = "torch.utils.flop_counter.FlopCounterMode"


def forward(model: Any, x: Any) -> int:
    """Count one forward pass."""
    with torch.no_grad():
        return counted(lambda: model(x, training=False))


def framework(model: Any, x: Any, y: Any) -> ToolCount:
    """Count a forward pass, then a forward and backward pass through the model's own loss."""

    def step() -> None:
        model.zero_grad()
        model.compute_loss(x=x, y=torch.as_tensor(y), y_pred=model(x, training=True)).backward()

    return ToolCount(forward(model, x), counted(step))


def counted(work: Callable[[], object]) -> int:
    """Return the FLOPs of whatever `work` runs."""
    # The counter does not know the fused attention of the CPU and would count it as 0: the plain formula runs instead.
    thrown_away = 0

    @contextmanager
    def noted() -> Iterator[None]:
        nonlocal thrown_away
        before = counter.get_total_flops()
        yield
        thrown_away += counter.get_total_flops() - before

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, around_thrown_away_steps(noted):
        work()
    return int(counter.get_total_flops() - thrown_away)
