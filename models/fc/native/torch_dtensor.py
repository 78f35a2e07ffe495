"""PyTorch: tensor parallelism by DTensor, which inserts the collectives itself, like `RowwiseParallel`.

A module of its own: `torch.distributed.tensor` is a heavy import, which the workers of every other mode do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from keras_matrix.models.fc.interface import Loss, Tensor
from keras_matrix.models.fc.native.torch_worker import TorchWorker


class DTensorWorker(TorchWorker):
    """A worker that multiplies divided arrays with DTensor, whose collectives are counted in the first step only."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__(size)
        self._mesh = init_device_mesh(device, (size,))
        self._counted = False

    def begin_step(self) -> None:
        """Reset the counts, unless they are final."""
        if not self._counted:
            super().begin_step()

    def divided_product(self, x: Tensor, weight: Tensor, axis: int) -> Tensor:
        """Multiply a batch in columns by a weight in rows with DTensor, and divide the sum along an axis."""
        columns = DTensor.from_local(x, self._mesh, [Shard(1)], run_check=False)
        rows = DTensor.from_local(weight, self._mesh, [Shard(0)], run_check=False)
        return torch.matmul(columns, rows).redistribute(placements=[Shard(axis)]).to_local()

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if self._counted:
            return super().gradient(loss, weights)
        with CollectiveCounter(self):
            loss_and_gradients = super().gradient(loss, weights)
        self._counted = True
        return loss_and_gradients


# DTensor's collectives, the field that counts each, and whether its argument is one worker's piece of the array.
COUNTED = {
    "all_reduce": ("all_reduce_bytes", False),
    "reduce_scatter_tensor": ("reduce_scatter_bytes", False),
    "all_gather_into_tensor": ("all_gather_bytes", True),
}
WAITS = ("wait_tensor", "_wrap_tensor_autograd")


class CollectiveCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts the collectives that DTensor calls, with their arrays."""

    def __init__(self, worker: DTensorWorker) -> None:
        super().__init__()
        self._worker = worker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the plain calls to which DTensor decomposes its own. Raises `RuntimeError` for an unknown
        collective."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace == "_c10d_functional":
            self._count(func._opname, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        if name in WAITS:
            return
        if name not in COUNTED:
            raise RuntimeError(f"DTensor called {name}, which is not counted")
        field, is_in_pieces = COUNTED[name]
        self._worker.count(field, args[0], self._worker.size if is_in_pieces else 1)
