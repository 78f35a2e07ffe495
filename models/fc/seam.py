"""What a worker's program asks of a backend: collectives and gradients. Everything else is `keras.ops`.

Promise: with one worker no collective runs. Bytes are counted here, in one place for all backends, of every collective
that a program calls: at each step where it runs eagerly, once where it is traced.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from keras import ops
from keras.backend import standardize_dtype

from records.fc import ITEM_BYTES, Traffic

Tensor = Any
Loss = Callable[[Sequence[Tensor]], Tensor]


class Worker(ABC):
    """One of `size` workers, as its program sees it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.traffic = Traffic()

    def begin_step(self) -> None:
        """Forget what was counted."""
        self.traffic = Traffic()

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all workers' x."""
        if self.size == 1:
            return x
        self.count("all_reduce_bytes", x)
        return self._all_reduce(x)

    def reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        """Return this worker's piece, along an axis, of the sum of all workers' x."""
        if self.size == 1:
            return x
        self.count("reduce_scatter_bytes", x)
        return self._reduce_scatter(x, axis)

    def all_gather(self, x: Tensor, axis: int) -> Tensor:
        """Return all workers' pieces side by side along an axis."""
        if self.size == 1:
            return x
        self.count("all_gather_bytes", x, self.size)
        return self._all_gather(x, axis)

    def scattered_sum(self, x: Tensor, axis: int) -> Tensor:
        """Do as `reduce_scatter`, for a gradient to come back through: every worker's piece of it, gathered."""

        @ops.custom_gradient  # type: ignore[untyped-decorator]
        def scattered(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
            def gathered(*arguments: Tensor, upstream: Tensor = None) -> Tensor:
                return self.all_gather(arguments[0] if upstream is None else upstream, axis)

            return self.reduce_scatter(x, axis), gathered

        return scattered(x)

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return this worker's loss and, for weights that all workers hold, the gradient of the sum of all losses."""
        own, gradients = self.gradient(loss, weights)
        return own, [self.all_reduce(gradient) for gradient in gradients]

    def count(self, collective: str, x: Tensor, times: int = 1) -> None:
        """Count a collective on an array, or on as many pieces as `times` says."""
        size = math.prod(x.shape) * ITEM_BYTES[standardize_dtype(x.dtype)] * times
        found = self.traffic
        counted = {collective: getattr(found, collective) + size, "calls": found.calls + 1}
        self.traffic = replace(found, **counted)

    @abstractmethod
    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return this worker's loss and its gradient, by the backend's automatic differentiation."""

    @abstractmethod
    def _all_reduce(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor: ...

    @abstractmethod
    def _all_gather(self, x: Tensor, axis: int) -> Tensor: ...
