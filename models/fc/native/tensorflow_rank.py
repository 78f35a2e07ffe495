"""TensorFlow's data parallelism by its own strategies, which have replicas and sum their gradients.

Over a network there is a process per worker, joined by `tf.distribute.MultiWorkerMirroredStrategy`, whose ring sums
gradients by gRPC; each process has its own weights, which stay equal because all add the same sums. Without a
network `tf.distribute.MirroredStrategy` has all replicas in this process.

A module of its own: it runs in another process, a worker's own, and is imported only there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.interface import Loss, Tensor, Worker, WorkerAxis, scope
from keras_matrix.models.fc.meeting import Meeting, free_port, located
from keras_matrix.models.fc.native.tensorflow_workers import TensorFlowWorkerGroup, TracedWorker, taped_gradient
from keras_matrix.models.fc.profiled import by_profiling, seen_by
from keras_matrix.models.fc.programs import Result, program
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, placement
from keras_matrix.models.process import take_share
from keras_matrix.records.fc.communication import Communication, Traffic
from keras_matrix.records.fc.spec import LEARNING_RATE, WorkerPlacement
from keras_matrix.records.traces.neutral import covered
from keras_matrix.records.traces.request import TraceOrder
from keras_matrix.records.traces.xspace.xplane import Plane

# TensorFlow's pool has a thread per CPU of the process. A single one would start no sum before all other operations
# that are ready, such as a sleeping layer.
LEAST_THREADS = 2
# The operation that sums over processes; its events are named `NAME:OPERATION`.
COLLECTIVE = ":CollectiveReduceV2"


def join(meeting: Meeting) -> TensorFlowRank:
    """Join the other workers and return this one. Raises `NotMet`, `NoSuchNetwork`, or TensorFlow's error."""
    order, address = meeting.order, meeting.address()
    _take_threads(take_share(*meeting.here))
    workers = meeting.exchanged(f"{address}:{free_port(address)}")
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": meeting.rank}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    experimental = tf.distribute.experimental
    options = experimental.CommunicationOptions(
        bytes_per_pack=order.problem.bytes_per_pack, implementation=experimental.CommunicationImplementation.RING
    )
    return TensorFlowRank(order, meeting.rank, tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))


def _take_threads(cpus: int) -> None:
    """Let operations run at the same time, unless the settings of the cell say how many."""
    if not tf.config.threading.get_inter_op_parallelism_threads():
        tf.config.threading.set_inter_op_parallelism_threads(max(LEAST_THREADS, cpus))


class MirroredWorker(TracedWorker):
    """A replica, in the strategy's own thread."""

    def along(self, axis: WorkerAxis) -> Worker:
        return self

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return taped_gradient(loss, weights)

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        loss_value, gradients = self.gradient(loss, weights)
        return loss_value, self._summed(gradients)

    def summed_accumulated_gradient(
        self, losses: Sequence[Loss], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        loss, gradients = self.accumulated_gradient(losses, weights)
        return loss, self._summed(gradients)

    def _summed(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Sum all gradients in one call, like an optimizer under a strategy; the strategy decides how to pack them."""
        for gradient in gradients:
            self.count("all_reduce_bytes", gradient)
        replica = tf.distribute.get_replica_context()
        summed: list[Tensor] = replica.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
        return summed

    def _all_reduce(self, x: Tensor) -> Tensor:
        raise NotImplementedError("a mirrored worker sums all its gradients at once")

    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        raise NotImplementedError("a mirrored worker has complete weights")

    _all_gather = _reduce_scatter


class NetworkWorker(MirroredWorker):
    """A replica whose sums go over the network, with the backward pass or after it."""

    def _all_reduce(self, x: Tensor) -> Tensor:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


class TensorFlowRank(WorkerGroup):
    """One worker's variables and its part of the traced step."""

    backend = "tensorflow"

    def __init__(self, order: WorkerSpec, rank: int, strategy: Any) -> None:
        self._order, self._rank, self._strategy = order, rank, strategy
        self._worker = NetworkWorker(order.problem.workers)
        self._weights = [tf.Variable(self._typed(w)) for w in worker_group.weights_of(order.problem, order.seed, rank)]
        batch, labels = worker_group.batch_of(order.problem, order.seed, rank)
        self._batch = self._typed(batch), self._typed(labels)
        self._step = tf.function(partial(strategy.run, self._replica), autograph=False)
        self._found: Any = None

    def run(self, steps: int) -> None:
        """Run steps; on a CPU each call returns when the step has ended."""
        for _ in range(steps):
            self._found = self._step()

    def loss(self) -> float:
        return float(self._found[0])

    def states(self) -> list[WorkerState]:
        gradients, weights = ([array.numpy() for array in arrays] for arrays in (self._found[1], self._weights))
        return [WorkerState(self.loss(), gradients, weights)]

    def places(self) -> list[WorkerPlacement]:
        devices = (array.device for array in (*self._batch, *self._weights))
        return [located(placement(self._rank, devices, self._weights, self._batch), self._order, self._rank)]

    def traffic(self) -> Traffic:
        """Return the counts while the step was traced."""
        return self._worker.traffic

    def watched(self, steps: int, epochs: int) -> list[tuple[float, float]]:
        """Run further epochs; return for each the seconds of a step, and those of it inside collectives."""
        communication = by_profiling(lambda run: _inside_s(seen_by(self.backend, run)), self.run, steps, epochs)
        if communication is None:
            return []
        pairs = zip(communication.step_times_s, communication.compute_times_s, strict=True)
        return [(step_s, step_s - compute_s) for step_s, compute_s in pairs]

    def traced(self, order: TraceOrder) -> None:
        """Run steps that the profiler records, all workers at the same time."""
        from keras_matrix.models.profiling import load, record_epochs

        self.run(1)
        record_epochs(load(self.backend), replace(order, worker=self._rank), partial(self.run, 1))
        if self._order.problem.mode == "fc_data":
            self._calibrate(Path(order.folder))

    def _calibrate(self, folder: Path) -> None:
        """Time all-reduces of several sizes during computation; the first worker stores its times."""
        from keras_matrix.models.fc.native.timed_collectives import CollectiveWorkers, store

        problem, lone_worker = self._order.problem, MirroredWorker(1)  # which sums over the replicas of no strategy
        weights = [tf.convert_to_tensor(variable) for variable in self._weights]
        step = tf.function(lambda: program(problem.mode)(lone_worker, problem, weights, self._batch), autograph=False)

        def summing(size_bytes: int) -> Callable[[], object]:
            array = tf.zeros([max(1, size_bytes // weights[0].dtype.size)], problem.precision)
            worker = NetworkWorker(problem.workers)  # not the step's, which counts its traffic
            summed: Callable[[], object] = tf.function(
                partial(self._strategy.run, worker.all_reduce, (array,)), autograph=False
            )
            return summed

        total = sum(int(tf.size(weight)) * weight.dtype.size for weight in weights)
        store(folder, self._rank, CollectiveWorkers(problem.workers, summing, step), total)

    def _replica(self) -> Result:
        """The worker's step: its loss, and its gradients if they are requested."""
        problem = self._order.problem
        self._worker.begin_step()
        weights = [tf.convert_to_tensor(variable) for variable in self._weights]
        loss, gradients = program(problem.mode)(self._worker, problem, weights, self._batch)
        for variable, gradient in zip(self._weights if gradients else [], gradients, strict=True):
            with scope("update"):
                rate = tf.constant(LEARNING_RATE, variable.dtype)
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return loss, gradients if self._order.keep_gradients else []

    def _typed(self, array: worker_group.Array) -> Any:
        return tf.cast(tf.convert_to_tensor(array), self._order.problem.precision)


def _inside_s(planes: list[Plane]) -> float:
    """Return the seconds in which a sum over the processes was under way."""
    spans: list[tuple[float, float]] = []
    for plane in planes:
        kinds = {kind for kind, name in plane.event_names.items() if name.endswith(COLLECTIVE)}
        for line in plane.lines if kinds else []:
            events = line.events()
            is_collective = [kind in kinds for kind in events.kinds.tolist()]
            spans += zip(events.start_ns[is_collective].tolist(), events.end_ns[is_collective].tolist(), strict=True)
    return covered(spans) / 1e9


class MirroredWorkerGroup(TensorFlowWorkerGroup):
    """Variables mirrored on logical devices; each replica runs the program of one worker."""

    def __init__(self, order: WorkerSpec) -> None:
        super().__init__(order)
        self._batch = self._strategy.experimental_distribute_values_from_function(
            lambda replica: self._batches[replica.replica_id_in_sync_group]
        )

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Return None: by the profiler's names, the strategy's collectives cannot be distinguished from others."""
        return None

    def _laid_out(self) -> list[list[Any]]:
        """Return each replica's part of the mirrored variables."""
        # Its default collective operations on a CPU support only one strategy per process.
        sums = tf.distribute.ReductionToOneDevice() if self._order.device == "cpu" else None
        self._strategy = tf.distribute.MirroredStrategy(self._devices, sums)
        with self._strategy.scope():
            drawn_weights = worker_group.weights_of(self._order.problem, self._order.seed, 0)  # equal for all replicas
            self._mirrored = [tf.Variable(self._typed(weight)) for weight in drawn_weights]
        return [[variable.values[rank] for variable in self._mirrored] for rank in range(self._order.problem.workers)]

    def _in_lockstep(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem = self._order.problem
        workers: list[Worker] = []

        def local(batch: tuple[Any, Any]) -> Result:
            workers.append(MirroredWorker(problem.workers))
            return program(problem.mode)(
                workers[-1], problem, [tf.convert_to_tensor(variable) for variable in self._mirrored], batch
            )

        loss, gradients = self._strategy.run(local, args=(self._batch,))
        self._workers = workers
        of_each = self._strategy.experimental_local_results
        split_gradients = [of_each(gradient) for gradient in gradients]
        return [
            (rank_loss, [split_gradient[rank] for split_gradient in split_gradients])
            for rank, rank_loss in enumerate(of_each(loss))
        ]
