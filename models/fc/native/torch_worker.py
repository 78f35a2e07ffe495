"""A PyTorch worker of the collective modes: its gradients and its collectives, by gloo or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from keras_matrix.models.fc import layout
from keras_matrix.models.fc.interface import Loss, Tensor, Worker, WorkerAxis
from keras_matrix.models.fc.native import torch_layers
from keras_matrix.models.process.process_group import COLLECTIVE_LIMIT
from keras_matrix.records.fc.spec import FcProblem


class TorchWorker(Worker):
    """This process's worker, within all or within a group of them."""

    def __init__(self, size: int, group: Any = None, whole: Worker | None = None) -> None:
        super().__init__(size, whole)
        self._group = group
        self._parts: dict[WorkerAxis, TorchWorker] = {}
        self._replica: torch.nn.parallel.DistributedDataParallel | None = None
        self._grouping: dict[str, Any] = {}
        self._compiled: dict[range, Callable[..., Tensor]] = {}
        self._aside: ThreadPoolExecutor | None = None

    def divide(self, problem: FcProblem, rank: int) -> None:
        """Form the groups of a problem; every worker does so, in the same order."""
        for axis in WorkerAxis:
            groups = layout.groups(problem, axis is WorkerAxis.MODEL)
            apart = [ranks if 1 < len(ranks) < self.size else None for ranks in groups]
            handles = [dist.new_group(ranks, timeout=COLLECTIVE_LIMIT) if ranks else None for ranks in apart]
            (own,) = (handle for handle, ranks in zip(handles, groups, strict=True) if rank in ranks)
            self._parts[axis] = TorchWorker(len(groups[0]), own, self)

    def group_gradients(self, problem: FcProblem) -> None:
        """Sum gradients in the buckets of a problem."""
        self._grouping = torch_layers.grouping(problem)

    def along(self, axis: WorkerAxis) -> Worker:
        return self._parts[axis]

    def parts(self) -> list[TorchWorker]:
        """Return this worker, and the same within each of its groups."""
        return [self, *self._parts.values()]

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():
            value = loss(weights)
            return value.detach(), list(torch.autograd.grad(value, weights))

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Use DistributedDataParallel, which sums gradients in buckets while the backward pass goes on."""
        return self.gradient(loss, weights) if self.size == 1 else self._backward([loss], weights)

    def summed_accumulated_gradient(
        self, losses: Sequence[Loss], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Use DistributedDataParallel, which only adds up gradients before the last loss."""
        if self.size == 1:
            return self.accumulated_gradient(losses, weights)
        return self._backward(losses, weights)

    def _backward(self, losses: Sequence[Loss], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        replica = self._replicated(weights)
        total: Tensor = None
        for number, loss in enumerate(losses, 1):
            with torch.enable_grad(), nullcontext() if number == len(losses) else replica.no_sync():
                value = replica(loss)
                value.backward()
            total = value.detach() if number == 1 else total + value.detach()
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            weight.grad = None
        return total, gradients

    def slept(self, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        slept: Tensor = torch_layers.LayerSleep.apply(x, forward_s, backward_s)
        return slept

    def recomputed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch_layers.recomputed(run)

    def compiled_block(self, block: range, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if block not in self._compiled:
            self._compiled[block] = torch_layers.compiled(run)
        return self._compiled[block]

    def meanwhile(self, communicate: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Communicate in a separate thread, in the order of the calls."""
        if self.size == 1:
            return super().meanwhile(communicate)
        self._aside = self._aside or ThreadPoolExecutor(1)
        return self._aside.submit(communicate).result

    def _replicated(self, weights: Sequence[Tensor]) -> Any:
        if self._replica is None:
            self._replica = torch.nn.parallel.DistributedDataParallel(WorkerModule(weights), **self._grouping)
            # A lambda, since PyTorch checks the annotations of a hook, which are strings in this file.
            self._replica.register_comm_hook(self, lambda worker, bucket: _summed(worker, bucket))  # noqa: PLW0108
        return self._replica

    def bucket_reduce(self, buffer: Tensor) -> Any:
        """Start to sum a bucket of gradients; return its future."""
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def _all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=self._group)
        return x

    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        # Pieces along the first axis are already contiguous, as the collectives require.
        pieces = x.contiguous() if axis == 0 else torch.cat(torch.chunk(x, self.size, axis))
        if x.is_cuda:
            own = x.new_empty((pieces.shape[0] // self.size, *pieces.shape[1:]))
            dist.reduce_scatter_single(own, pieces, group=self._group)
            return own
        # gloo's reduce-scatter sums the entire array on every worker, which sends twice as much as this exchange.
        received = torch.empty_like(pieces)
        dist.all_to_all_single(received, pieces, group=self._group)
        return received.unflatten(0, (self.size, -1)).sum(0)

    def _all_gather(self, x: Tensor, axis: int) -> Tensor:
        x = x.contiguous()
        gathered = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        dist.all_gather_single(gathered, x, group=self._group)
        return gathered if axis == 0 else torch.cat(torch.chunk(gathered, self.size), axis)


class WorkerModule(torch.nn.Module):  # type: ignore[misc]
    """The weights of one worker as a module, whose output is the given loss of them."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, loss: Loss) -> Tensor:
        return loss(list(self.weights))


def _summed(worker: TorchWorker, bucket: Any) -> Any:
    """Sum one bucket over the workers, and count it; without this hook it would be averaged."""
    buffer = bucket.buffer()
    worker.count("all_reduce_bytes", buffer)
    return worker.bucket_reduce(buffer)
