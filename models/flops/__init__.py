"""How much work a workload is, counted from the built model; and whether the ways of counting agree.

Three counts of a forward pass stand beside each other:

  analytic    arithmetic over the shapes of dense, convolutional and recurrent layers (`analytic.py`): no backend
  counted     two FLOPs per multiply-add of every matrix product and convolution that runs, loops included; the same
              definition on every backend (`forward` in `jax.py`, `tensorflow.py`, `torch.py`)
  framework   what the backend's own tool says (`framework` there), with its own idea of what to count

Each backend's file offers `forward(model, x)`, `framework(model, x, y)` and `TOOL`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast


@dataclass(frozen=True, slots=True)
class ToolCount:
    """What a framework's own tool says of one batch; None where it says nothing."""

    forward_flops: float | None
    train_flops: float | None
    train_bytes: float | None = None


class Counter(Protocol):
    """What a backend's file offers."""

    TOOL: str

    def forward(self, model: Any, x: Any) -> int:
        """Return the FLOPs of matrix products and convolutions of one forward pass over `x`."""

    def framework(self, model: Any, x: Any, y: Any) -> ToolCount:
        """Return what the framework's own tool says of a forward pass and of a training step."""


def load(backend: str) -> Counter:
    """Import a backend's counter and return it."""
    return cast(Counter, importlib.import_module(f"keras_matrix.models.flops.{backend}"))
