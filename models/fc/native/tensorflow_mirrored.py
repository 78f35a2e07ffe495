"""TensorFlow: data parallelism by `tf.distribute.MirroredStrategy`, which has replicas and sums their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_matrix.models.fc import layout
from keras_matrix.models.fc.interface import Loss, Tensor, Worker, WorkerAxis
from keras_matrix.models.fc.native.tensorflow_workers import TensorFlowWorkerGroup, TracedWorker, taped_gradient
from keras_matrix.models.fc.programs import Result, program
from keras_matrix.models.fc.worker_group import WorkerSpec
from keras_matrix.records.fc.communication import Communication


class MirroredWorker(TracedWorker):
    """A replica, in the strategy's own thread."""

    def along(self, axis: WorkerAxis) -> Worker:
        return self

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return taped_gradient(loss, weights)

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        own, gradients = self.gradient(loss, weights)
        return own, self._summed(gradients)

    def summed_accumulated_gradient(
        self, losses: Sequence[Loss], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        own, gradients = self.accumulated_gradient(losses, weights)
        return own, self._summed(gradients)

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
            drawn = layout.weights_of(self._order.problem, self._order.seed, 0)  # equal for all replicas
            self._mirrored = [tf.Variable(self._typed(weight)) for weight in drawn]
        return [[own.values[rank] for own in self._mirrored] for rank in range(self._order.problem.workers)]

    def _in_lockstep(self, weights: Sequence[list[Tensor]]) -> list[Result]:
        problem = self._order.problem
        workers: list[Worker] = []

        def local(batch: tuple[Any, Any]) -> Result:
            workers.append(MirroredWorker(problem.workers))
            return program(problem.mode)(
                workers[-1], problem, [tf.convert_to_tensor(own) for own in self._mirrored], batch
            )

        loss, gradients = self._strategy.run(local, args=(self._batch,))
        self._workers = workers
        of_each = self._strategy.experimental_local_results
        parts = [of_each(gradient) for gradient in gradients]
        return [(own, [part[rank] for part in parts]) for rank, own in enumerate(of_each(loss))]
