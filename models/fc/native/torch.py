"""PyTorch: a process per worker, with gloo on a CPU and NCCL on GPUs; DistributedDataParallel for fc_data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.interface import Stage, Tensor, Worker, mark_with, scope
from keras_matrix.models.fc.meeting import Meeting, NotMet, located
from keras_matrix.models.fc.native.torch_worker import TorchWorker
from keras_matrix.models.fc.programs import program
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, placement, require_devices
from keras_matrix.models.process_group import Member, connect, prepare, settle
from keras_matrix.records.fc.communication import Traffic
from keras_matrix.records.fc.spec import LEARNING_RATE, MODES, Parallelism, WorkerPlacement
from keras_matrix.records.traces.request import TraceOrder


class PortInUse(Exception):
    """A worker found no free port."""


def reserve(workers: int, device: str, key: str = "workers") -> None:
    """Check that there is a GPU for each worker; on a CPU every worker is a process."""
    if device != "cpu":
        require_devices("torch", device, torch.cuda.device_count(), workers, key)


def make(order: WorkerSpec) -> TorchRank:
    """Return the worker group of a single worker."""
    return TorchRank(order, 0)


def join(meeting: Meeting) -> TorchRank:
    """Join the other workers and return this one. Raises unless all join in time."""
    order, (number, local_workers) = meeting.order, meeting.here
    worker_count, limit = order.problem.workers, timedelta(seconds=meeting.timeout_s)
    member = Member(meeting.rank, worker_count, number, local_workers, order.device, meeting.interface())
    library = prepare(member)
    try:
        connect(member, library, _store(meeting, limit), limit)
    except RuntimeError as error:
        raise _not_met(error, worker_count, meeting.timeout_s) from error
    return TorchRank(order, meeting.rank, number)


def _store(meeting: Meeting, limit: timedelta) -> Any:
    """Return where workers find each other: a file, which needs no port, or a server of the first of all machines."""
    worker_count = meeting.order.problem.workers
    if meeting.file is not None:
        return dist.FileStore(meeting.file, worker_count)
    if meeting.rank == 0:
        server = dist.TCPStore(
            meeting.address(), 0, worker_count, is_master=True, timeout=limit, wait_for_workers=False
        )
        meeting.exchanged(f"{meeting.address()}:{server.port}")
        return server
    host, _, port = meeting.exchanged("")[0].rpartition(":")
    return dist.TCPStore(host, int(port), worker_count, is_master=False, timeout=limit)


def _not_met(error: RuntimeError, worker_count: int, timeout_s: float) -> Exception:
    """Return the reason why workers did not connect. The system chooses ports, so "in use" means that none is free."""
    if "address already in use" in str(error).lower():
        interface = os.environ["GLOO_SOCKET_IFNAME"]
        return PortInUse(
            f"no port was free on {interface} for a worker; end processes with open ports (ss -tan): {error}"
        )
    return NotMet(f"the {worker_count} workers did not all connect within {timeout_s:g} s: {error}")


class TorchStage(Stage):
    """This process's stage of fc_pipeline."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__(size, rank)
        self._sending: list[tuple[Any, Tensor]] = []

    def begin_step(self) -> None:
        """Release the arrays that have been sent."""
        super().begin_step()
        for sending, _ in self._sending:
            sending.wait()
        self._sending.clear()

    def receive(self, like: Tensor, shape: tuple[int, int], source: int) -> Tensor:
        x = like.new_empty(shape)
        dist.recv(x, source)
        return x

    def _send(self, x: Tensor, target_rank: int) -> None:
        x = x.contiguous()
        self._sending.append((dist.isend(x, target_rank), x))  # the array must live until it is sent


def _worker(order: WorkerSpec, rank: int) -> TorchWorker | TorchStage:
    problem = order.problem
    if problem.kind is Parallelism.PIPELINE:
        return TorchStage(problem.workers, rank)
    if problem.partition == "dtensor" and problem.workers > 1:
        from keras_matrix.models.fc.native.torch_dtensor import DTensorWorker

        return DTensorWorker(problem.workers, "cpu" if order.device == "cpu" else "cuda")
    if order.device == "cpu":
        worker = TorchWorker(problem.workers)
    else:
        from keras_matrix.models.fc.native.torch_worker import CudaWorker

        worker = CudaWorker(problem.workers)
    if problem.kind is Parallelism.HYBRID:
        worker.divide(problem, rank)
    worker.group_gradients(problem)
    return worker


COLLECTIVES = ("_all_reduce", "_reduce_scatter", "_all_gather", "bucket_reduce")


class CollectiveTimer:
    """Times each collective of a worker separately until `end`, with an idle device before and after it."""

    def __init__(self, worker: TorchWorker, device: torch.device) -> None:
        self.inside_s = 0.0
        self._device = device
        self._parts = list(worker.parts())
        for part in self._parts:
            for name in COLLECTIVES:
                setattr(part, name, self._timed(getattr(part, name)))
            part.meanwhile = partial(Worker.meanwhile, part)  # type: ignore[method-assign]

    def end(self) -> None:
        """Time collectives no longer: they overlap with computation again, in the steps that are traced."""
        for part in self._parts:
            for name in (*COLLECTIVES, "meanwhile"):
                delattr(part, name)

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            settle(self._device)
            begun_s = perf_counter()
            answer = collective(*arguments)
            if hasattr(answer, "wait"):  # a bucket's future
                answer.wait()
            settle(self._device)
            self.inside_s += perf_counter() - begun_s
            return answer

        return watched


class TorchRank(WorkerGroup):
    """One worker's weights and step. Several workers are a `Ranks`, which measures their communication."""

    def __init__(self, order: WorkerSpec, rank: int, number: int = 0) -> None:
        """Take the worker's rank, and its number among those of this machine, which is that of its GPU."""
        self._order, self._rank = order, rank
        self._worker = _worker(order, rank)
        self._device = torch.device("cpu" if order.device == "cpu" else f"cuda:{number}")
        self._weights = [self._weight(w) for w in worker_group.weights_of(order.problem, order.seed, rank)]
        batch, labels = worker_group.batch_of(order.problem, order.seed, rank)
        self._batch = self._placed(batch), self._placed(labels)
        self._loss: Any = None
        self._gradients: list[Any] = []

    def run(self, steps: int) -> None:
        """Run steps. Autodiff records only the gradients that a program requests."""
        with torch.no_grad():
            for _ in range(steps):
                self._step()
        settle(self._device)

    def loss(self) -> float:
        return float(self._loss)

    def states(self) -> list[WorkerState]:
        return [WorkerState(self.loss(), _arrays(self._gradients), _arrays(self._weights))]

    def places(self) -> list[WorkerPlacement]:
        devices = (tensor.device for tensor in (*self._batch, *self._weights))
        return [located(placement(self._rank, devices, self._weights, self._batch), self._order, self._rank)]

    def traffic(self) -> Traffic:
        return self._worker.traffic

    def device_peaks_bytes(self) -> list[int]:
        return [torch.cuda.max_memory_allocated(self._device)] if self._device.type == "cuda" else []

    def watched(self, steps: int, epochs: int) -> list[tuple[float, float]]:
        """Run further epochs; return for each the seconds of a step, and those of it inside collectives."""
        assert isinstance(self._worker, TorchWorker), "stages have no collectives"
        watch = CollectiveTimer(self._worker, self._device)
        step_times = []
        for _ in range(epochs + 1):
            dist.barrier()
            watch.inside_s, begun_s = 0.0, perf_counter()
            self.run(steps)
            step_times.append(((perf_counter() - begun_s) / steps, watch.inside_s / steps))
        watch.end()
        return step_times[1:]

    def traced(self, order: TraceOrder) -> None:
        """Run steps that the profiler records, all workers at the same time."""
        from keras_matrix.models.profiling import load, record_epochs

        profiler = load("torch")
        mark_with(profiler.mark)
        try:
            if dist.is_initialized():
                dist.barrier()
            record_epochs(profiler, replace(order, worker=self._rank), partial(self.run, 1))
        finally:
            mark_with(None)
        if dist.is_initialized() and self._order.problem.mode == "fc_data":
            self._calibrate(Path(order.folder))

    def _calibrate(self, folder: Path) -> None:
        """Time all-reduces of several sizes during computation; the first worker stores its times."""
        from keras_matrix.models.fc.native.timed_collectives import CollectiveWorkers, store

        problem, lone_worker = self._order.problem, TorchWorker(1)
        step = torch.no_grad()(partial(program(problem.mode), lone_worker, problem, self._weights, self._batch))
        total = sum(weight.numel() * weight.element_size() for weight in self._weights)

        def summing(size_bytes: int) -> Callable[[], object]:
            return partial(_summed, torch.zeros(max(1, size_bytes // torch.float32.itemsize), device=self._device))

        store(folder, self._rank, CollectiveWorkers(problem.workers, summing, step, dist.get_backend()), total)

    def close(self) -> None:
        """Leave the other workers."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _step(self) -> None:
        problem = self._order.problem
        self._worker.begin_step()
        self._loss, gradients = program(problem.mode)(self._worker, problem, self._weights, self._batch)
        with scope("update"):
            for weight, gradient in zip(self._weights if gradients else [], gradients, strict=True):
                weight.sub_(gradient, alpha=LEARNING_RATE)
        self._gradients = gradients if self._order.keep_gradients else []

    def _weight(self, array: worker_group.Array) -> Any:
        mode = MODES[self._order.problem.mode]
        placed_array = self._placed(array)
        return torch.nn.Parameter(placed_array, requires_grad=mode.trains and not mode.manual)

    def _placed(self, array: worker_group.Array) -> Any:
        # A copy: the blocks of fc_phy start from the same array, and each is trained in place.
        tensor = torch.tensor(array, device=self._device)
        return tensor.to(getattr(torch, self._order.problem.precision))


def _summed(values: Any) -> None:
    """Sum an array over the workers, and return when that is done.

    On a GPU in a stream of its own: in the current one it would wait for the computation issued there.
    """
    if values.device.type == "cpu":
        dist.all_reduce(values)
        return
    stream = torch.cuda.Stream(values.device)
    with torch.cuda.stream(stream):
        dist.all_reduce(values)
    stream.synchronize()


def _arrays(tensors: Sequence[Any]) -> list[worker_group.Array]:
    # NumPy has no bfloat16.
    return [tensor.detach().cpu().to(torch.float64).numpy() for tensor in tensors]
