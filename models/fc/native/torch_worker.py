"""A PyTorch worker of the collective modes: its layers, its gradients and its collectives, by gloo or NCCL.

On a GPU, communication is on a CUDA stream next to that of the computation.
A collective of NCCL starts after all earlier work of the current stream, and with `async_op=False` later work of that
stream waits for its end (PyTorch, "Distributed communication package", "Synchronous and asynchronous collective
operations"). Threads do not help: they share the default stream. Instead of a thread, as on a CPU, a GPU therefore uses
a second stream, on which collectives can stay synchronous.

A module of its own: it runs in another process, a worker's own, which `torch` starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.interface import Loss, Tensor, Worker, WorkerAxis
from keras_matrix.models.process_group import COLLECTIVE_LIMIT
from keras_matrix.records.dtypes import ELEMENT_BYTES
from keras_matrix.records.fc import rules
from keras_matrix.records.fc.spec import FcProblem
from keras_matrix.records.text import MIB


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
            groups = worker_group.groups(problem, axis is WorkerAxis.MODEL)
            separate_groups = [ranks if 1 < len(ranks) < self.size else None for ranks in groups]
            handles = [dist.new_group(ranks, timeout=COLLECTIVE_LIMIT) if ranks else None for ranks in separate_groups]
            (group,) = (handle for handle, ranks in zip(handles, groups, strict=True) if rank in ranks)
            self._parts[axis] = TorchWorker(len(groups[0]), group, self)

    def group_gradients(self, problem: FcProblem) -> None:
        """Sum gradients in the buckets of a problem."""
        self._grouping = grouping(problem)

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
        slept: Tensor = LayerSleep.apply(x, forward_s, backward_s)
        return slept

    def recomputed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return recomputed(run)

    def compiled_block(self, block: range, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if block not in self._compiled:
            self._compiled[block] = compiled(run)
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
        return work.get_future().then(lambda future: future.value()[0])

    def _all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=self._group)
        return x

    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        # Pieces along the first axis are already contiguous, as the collectives require.
        pieces = x.contiguous() if axis == 0 else torch.cat(torch.chunk(x, self.size, axis))
        if x.is_cuda:
            shard = x.new_empty((pieces.shape[0] // self.size, *pieces.shape[1:]))
            dist.reduce_scatter_single(shard, pieces, group=self._group)
            return shard
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


class LayerSleep(torch.autograd.Function):  # type: ignore[misc]
    """The identity, after a sleep; in the backward pass after another one. Traces show it by this name."""

    @staticmethod
    def forward(context: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        """Sleep, and return x."""
        context.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Sleep, and pass the gradient on."""
        time.sleep(context.backward_s)
        return upstream, None, None


def recomputed(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that retains only its arguments, and runs again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    # Nothing is random.
    return lambda *arguments: checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)


def compiled(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function compiled as one program for fixed shapes. Raises if it cannot be one program."""
    import torch._dynamo.config
    import torch._inductor.config

    # Workers may not start processes of multiprocessing's, and have one core each.
    torch._inductor.config.compile_threads = 1
    # Otherwise a block is cut where DistributedDataParallel's buckets end, and refused if the first is below 1 MiB.
    torch._dynamo.config.optimize_ddp = False
    function: Callable[..., Tensor] = torch.compile(run, fullgraph=True, dynamic=False)
    return function


def grouping(problem: FcProblem) -> dict[str, Any]:
    """Return the arguments by which DistributedDataParallel makes a problem's buckets; it counts in MiB."""
    if problem.bucket_cap_mb:
        return {"bucket_cap_mb": problem.bucket_cap_mb}
    if not problem.buckets:
        return {}
    item = ELEMENT_BYTES[problem.precision]
    sizes_bytes = [rows * columns * item for rows, columns in reversed(problem.shapes)]
    capacities = rules.capacities_of(rules.counts(problem.buckets), sizes_bytes)
    return {"bucket_cap_mb_list": [capacity / MIB for capacity in capacities]}


class CudaWorker(TorchWorker):
    """A worker on a GPU, which communicates on a separate stream while it computes."""

    def __init__(self, size: int, group: Any = None, whole: Worker | None = None) -> None:
        super().__init__(size, group, whole)
        self._stream: Any = None

    def meanwhile(self, communicate: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Communicate on a separate stream, after all work of the current one until now.

        `communicate` is referenced until the current stream waits for the result: the memory of its array must not be
        reused before it has been sent.
        """
        if self.size == 1:
            return Worker.meanwhile(self, communicate)
        self._stream = self._stream or torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            communicated = communicate()
            event = torch.cuda.Event()
            event.record(self._stream)
        return Pending(communicate, communicated, event)


class Pending:
    """The result of an asynchronous communication; a call lets the current stream wait for it."""

    def __init__(self, communicate: Callable[[], Tensor], communicated: Tensor, event: Any) -> None:
        self._communicate, self._made, self._done = communicate, communicated, event

    def __call__(self) -> Tensor:
        """Return the result, for use on the current stream."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._done)
        # The other stream owns its memory, and must not reuse it while this one reads it.
        self._made.record_stream(stream)
        return self._made
