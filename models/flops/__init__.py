"""Counts the work of a workload from the built model, in three independent ways for a forward pass:

  analytic    arithmetic over the shapes of dense, convolutional and recurrent layers (`counting.py`): no backend
  counted     two FLOPs per multiply-add of every matrix product and convolution that runs, loops included; the same
              definition on every backend (`forward` in `jax.py`, `tensorflow.py`, `torch.py`)
  framework   the result of the backend's own tool (`framework` there), with its own definition

Each backend's file offers `forward(model, x)`, `framework(model, x, y)` and `TOOL`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast


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
