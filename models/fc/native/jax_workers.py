"""JAX's workers in one process: one program over a mesh of devices (`shard_map`), compiled once; fc_pipeline, whose
stages differ, has programs per stage and device, dispatched asynchronously.

Without a network the devices are virtual; jax_rank.py is one worker process of several.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_matrix.models.fc import profiled, worker_group
from keras_matrix.models.fc.interface import Loss, Tensor, Worker, WorkerAxis, scope
from keras_matrix.models.fc.profiled import by_profiling, jax_collectives_s, seen_by
from keras_matrix.models.fc.programs import Boxes, LocalStage, in_turn, program
from keras_matrix.models.fc.worker_group import (
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    device_peaks_bytes,
    placement,
)
from keras_matrix.records.fc import rules
from keras_matrix.records.fc.communication import Communication, Traffic, together
from keras_matrix.records.fc.rules import buckets_by_count
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem, Parallelism, WorkerPlacement

# The mesh of every problem has both; if the work is divided in one way only, one of them has length 1.
AXES = tuple(axis.value for axis in WorkerAxis)
# XLA's CPU client has up to 32 computations of a device in flight and starts them in no fixed order. With more queued
# steps, a device may wait for a step that another one has not begun: their collective never ends, and XLA aborts after
# 40 s (jaxlib 0.10.2: epochs of 31 steps pass, of 34 fail). Half as many steps never leave a device idle.
STEPS_AHEAD = 16
# Lets sums be separate that the program keeps separate: this pass merges all sums of a step, which then begin only
# after the last gradient. (XLA's pass for GPUs has another name, and a threshold.)
SEPARATE_SUMS = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
_compiled = cache(jax.jit)


class JaxWorker(Worker):
    """All workers: a single tracing inside `shard_map` represents each of them.

    `buckets` are the numbers of gradients that are summed together, from the last layer; none: each is summed alone.
    """

    buckets: tuple[int, ...] = ()

    def __init__(self, mesh: Mesh, axes: tuple[str, ...] = AXES, whole: Worker | None = None) -> None:
        super().__init__(math.prod(mesh.shape[axis] for axis in axes), whole)
        self._mesh, self._axes = mesh, axes

    def along(self, axis: WorkerAxis) -> Worker:
        return type(self)(self._mesh, (axis.value,), self)

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        value, gradients = jax.value_and_grad(loss)(list(weights))
        return value, gradients

    def summed_gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        loss_value, gradients = self.gradient(loss, weights)
        return loss_value, self._summed(gradients)

    def accumulated_gradient(self, losses: Sequence[Loss], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Let each loss begin after the gradients of the previous one: XLA would compute them at the same time."""
        total, sums = self.gradient(losses[0], weights)
        for loss in losses[1:]:
            first_weight, *_ = self._after_all([weights[0], *sums])
            part_loss, gradients = self.gradient(loss, [first_weight, *weights[1:]])
            total, sums = total + part_loss, [a + b for a, b in zip(sums, gradients, strict=True)]
        return total, sums

    def summed_accumulated_gradient(
        self, losses: Sequence[Loss], weights: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        loss, gradients = self.accumulated_gradient(losses, weights)
        return loss, self._summed(gradients)

    def slept(self, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        slept: Tensor = _sleeping(forward_s, backward_s)(x)
        return slept

    def recomputed(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _recomputed(run)

    def _summed(self, gradients: list[Tensor]) -> list[Tensor]:
        """Sum the gradients of each bucket as one array, or each alone; XLA may merge sums that are not in buckets."""
        if self.size == 1 or not self.buckets:
            return [self.all_reduce(gradient) for gradient in gradients]
        backward = gradients[::-1]
        sums = [
            self._summed_together([backward[index] for index in bucket]) for bucket in buckets_by_count(self.buckets)
        ]
        return [gradient for bucket in sums for gradient in bucket][::-1]

    def _summed_together(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        flat = self.all_reduce(jnp.concatenate([jnp.ravel(array) for array in arrays]))
        ends = np.cumsum([array.size for array in arrays])
        return [
            jnp.reshape(flat_array, array.shape)
            for flat_array, array in zip(jnp.split(flat, ends[:-1]), arrays, strict=True)
        ]

    def _all_reduce(self, x: Tensor) -> Tensor:
        return jax.lax.psum(x, self._axes)

    def _reduce_scatter(self, x: Tensor, axis: int) -> Tensor:
        return jax.lax.psum_scatter(x, self._axes, scatter_dimension=axis, tiled=True)

    def _all_gather(self, x: Tensor, axis: int) -> Tensor:
        return jax.lax.all_gather(x, self._axes, axis=axis, tiled=True)

    def _after_all(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        # XLA removes pure ordering constraints, but not this sum: it cannot assume 0 x = 0, since x may be NaN.
        nothing = 0 * sum(array[:1, :1] for array in arrays)
        return [jax.lax.dynamic_update_slice(array, array[:1, :1] + nothing, (0, 0)) for array in arrays]


def _sleeping(forward_s: float, backward_s: float) -> Callable[[Tensor], Tensor]:
    """Return the identity, after a sleep; its gradient passes after another one."""

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def sleeping(x: Tensor) -> Tensor:
        return _after_sleep(x, forward_s)

    sleeping.defvjp(lambda x: (sleeping(x), None), lambda _, upstream: (_after_sleep(upstream, backward_s),))
    slept: Callable[[Tensor], Tensor] = sleeping
    return slept


def _recomputed(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that retains only its arguments, and runs again when its result's gradient is known.

    `jax.checkpoint` does not do that on a CPU: XLA removes the barrier between both runs and merges them (jaxlib
    0.10.2). Here the second run has another input, to which zero times the gradient is added.
    """

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def runs(*arguments: Tensor) -> Tensor:
        return run(*arguments)

    def backward(arguments: tuple[Tensor, ...], upstream: Tensor) -> tuple[Tensor, ...]:
        x, *weights = arguments
        nothing = (0 * upstream[:1, :1]).astype(x.dtype)
        delayed_x = jax.lax.dynamic_update_slice(x, x[:1, :1] + nothing, (0, 0))
        gradients: tuple[Tensor, ...] = jax.vjp(run, delayed_x, *weights)[1](upstream)
        return gradients

    runs.defvjp(lambda *arguments: (run(*arguments), arguments), backward)
    recomputed: Callable[..., Tensor] = runs
    return recomputed


def _after_sleep(x: Tensor, seconds: float) -> Tensor:
    """Return x once `seconds` have passed since it was computed.

    A callback with effects is neither removed nor merged with another. Its argument is one number: a callback that
    converts large arrays can deadlock with the only thread of a CPU device.
    """
    if not seconds:
        return x
    dtype = np.dtype(x.dtype)

    def sleep(_: Any) -> Any:
        time.sleep(seconds)
        return np.zeros((), dtype)

    return x + io_callback(sleep, jax.ShapeDtypeStruct((), dtype), jnp.ravel(x)[0])


class JaxWorkerGroup(WorkerGroup):
    """Arrays over a mesh, and the compiled step, which takes and returns the weights."""

    backend = "jax"
    steps_ahead = STEPS_AHEAD

    def __init__(self, order: WorkerSpec) -> None:
        problem = order.problem
        self._order = order
        shape = (problem.data_size, problem.model_size)
        self._mesh = Mesh(np.asarray(jax.devices()[: problem.workers]).reshape(shape), AXES)
        # If JAX divides the work itself, the program is that of one worker.
        self._worker = JaxWorker(Mesh(self._mesh.devices[:1, :1], AXES) if self._divides else self._mesh)
        self._worker.buckets = rules.counts(problem.buckets)
        weights, *specs = _specs(problem)
        self._weights = self._placed_weights(weights)
        batch, labels = map(self._placed, worker_group.draw_batch(problem, order.seed), specs)
        self._batch = batch, labels
        self._step = self._compiled(self._worker)
        self._losses: Any = None
        self._gradients: list[Any] = []

    def run(self, steps: int) -> None:
        """Run steps; Python is at most `steps_ahead` steps ahead of JAX and waits for the last one."""
        in_flight: deque[Any] = deque()
        for _ in range(steps):
            self._weights, self._losses, self._gradients = self._step(self._weights, self._batch)
            in_flight.append(self._losses)
            if len(in_flight) == self.steps_ahead:
                in_flight.popleft().block_until_ready()
        jax.block_until_ready((self._weights, self._losses))

    def loss(self) -> float:
        return float(np.sum(np.asarray(self._losses, np.float64)))

    def states(self) -> list[WorkerState]:
        losses = np.zeros(self._order.problem.workers)
        losses[: len(self._losses)] = self._losses  # a single one if JAX divides the work itself
        arrays = zip(self._of_each(self._gradients), self._of_each(self._weights), strict=True)
        return [WorkerState(float(loss), *rank_arrays) for loss, rank_arrays in zip(losses, arrays, strict=True)]

    def places(self) -> list[WorkerPlacement]:
        weights, batch = (list(map(_shards, arrays)) for arrays in (self._weights, self._batch))
        return [
            placement(
                rank,
                [batch[0][rank].device],
                *([array_shards[rank].data for array_shards in arrays] for arrays in (weights, batch)),
            )
            for rank in range(self._order.problem.workers)
        ]

    def traffic(self) -> Traffic:
        """Return the counts while the step was traced.

        Where JAX puts in the collectives, or must not merge them, those of the compiled step are counted instead.
        """
        if not self._divides and not self._worker.buckets:
            return self._worker.traffic
        return profiled.traffic_of(self._text(), self._order.problem.workers)

    def device_peaks_bytes(self) -> list[int]:
        return device_peaks_bytes(list(self._mesh.devices.flat))

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Measure the collective instructions of the compiled step with JAX's profiler."""
        if not self.traffic().calls:
            return None
        names = profiled.collectives(self._text())
        return by_profiling(lambda run: jax_collectives_s(seen_by("jax", run), names), self.run, steps, epochs)

    @property
    def _divides(self) -> bool:
        """Whether JAX divides the work, by the sharding of the arrays."""
        return self._order.problem.partition == "named_sharding"

    def _text(self) -> str:
        """Return the text of the compiled step."""
        return str(self._step.lower(self._weights, self._batch).compile().as_text())

    def _compiled(self, worker: JaxWorker) -> Any:
        weights, batch, labels = _specs(self._order.problem)
        step: Any = partial(self._local, worker)
        if self._divides:
            sharding = NamedSharding(self._mesh, weights)
            return jax.jit(step, donate_argnums=0, out_shardings=(sharding, NamedSharding(self._mesh, P()), sharding))
        if self._worker.size > 1:
            step = jax.shard_map(
                step,
                mesh=self._mesh,
                in_specs=(weights, (batch, labels)),
                out_specs=(weights, P(AXES), weights),
                check_vma=False,  # a gathered gradient is the same everywhere, which the checker cannot infer
            )
        return jax.jit(step, donate_argnums=0, compiler_options=SEPARATE_SUMS if worker.buckets else None)

    def _local(self, worker: JaxWorker, weights: list[Any], batch: tuple[Any, Any]) -> tuple[list[Any], Any, list[Any]]:
        """One worker's step."""
        problem = self._order.problem
        worker.begin_step()
        loss, gradients = program(problem.mode)(worker, problem, weights, batch)
        with scope("update"):
            new = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)] if gradients else weights
        return new, jnp.reshape(loss, (1,)), gradients if self._order.keep_gradients else []

    def _placed_weights(self, spec: P) -> list[Any]:
        problem = self._order.problem
        drawn_weights = list(worker_group.draw_weights(problem, self._order.seed))
        if problem.kind is Parallelism.PHYSICS:
            drawn_weights = [
                np.concatenate([weight] * problem.workers) for weight in drawn_weights
            ] * problem.phy_blocks
        return [self._placed(weight, spec) for weight in drawn_weights]

    def _placed(self, array: worker_group.Array, spec: P) -> Any:
        typed = array.astype(jnp.dtype(self._order.problem.precision))
        return jax.block_until_ready(jax.device_put(typed, NamedSharding(self._mesh, spec)))

    def _of_each(self, arrays: Sequence[Any]) -> list[list[worker_group.Array]]:
        """Return each worker's pieces of these arrays."""
        shards = [_shards(array) for array in arrays]
        return [
            [np.asarray(array_shards[rank].data) for array_shards in shards]
            for rank in range(self._order.problem.workers)
        ]


def _specs(problem: FcProblem) -> tuple[P, P, P]:
    """Return how weights, batch and labels are divided: by rows of the mesh, its columns, or both."""
    # In fc_phy every worker has its own weights, which are stacked.
    rows = WorkerAxis.DATA if problem.kind in (Parallelism.SHARDED, Parallelism.PHYSICS) else WorkerAxis.MODEL
    return P(rows.value), P(*AXES), P(AXES)


def _shards(array: Any) -> list[Any]:
    """Return an array's pieces in the order of the workers."""
    return sorted(array.addressable_shards, key=lambda shard: shard.device.id)


class JaxStages(WorkerGroup):
    """A worker group of stages, which have no collectives.

    The weights of each stage, and all results computed from them, are on a separate device. `shard_map` runs one
    program on all devices, which would require equal stages. Here each stage has compiled programs for one micro-batch
    on its device; JAX dispatches asynchronously, so that devices work at the same time.
    """

    backend = "jax"

    def __init__(self, order: WorkerSpec) -> None:
        problem = order.problem
        self._order = order
        self._devices = jax.devices()[: problem.workers]
        ranks, boxes = range(problem.workers), Boxes()
        self._weights = [
            [self._placed(weight, rank) for weight in worker_group.weights_of(problem, order.seed, rank)]
            for rank in ranks
        ]
        self._batches = [self._placed_batch(rank) for rank in ranks]
        self._stages = [
            LocalStage(problem.workers, rank, boxes, partial(jax.device_put, device=self._devices[rank]), _compiled)
            for rank in ranks
        ]
        self._losses: list[Any] = []
        self._gradients: list[list[Any]] = []

    def run(self, steps: int) -> None:
        """Run steps; wait for the results of the last one on every device."""
        for _ in range(steps):
            self._step()
        jax.block_until_ready((self._weights, self._losses))

    def loss(self) -> float:
        """Return the loss of the last stage; the others have no loss."""
        return sum(map(float, self._losses))

    def states(self) -> list[WorkerState]:
        stages = zip(self._losses, self._gradients, self._weights, strict=True)
        return [WorkerState(float(loss), _arrays(gradients), _arrays(weights)) for loss, gradients, weights in stages]

    def places(self) -> list[WorkerPlacement]:
        held = zip(self._weights, self._batches, strict=True)
        return [
            placement(rank, (device for array in (*weights, *batch) for device in array.devices()), weights, batch)
            for rank, (weights, batch) in enumerate(held)
        ]

    def traffic(self) -> Traffic:
        return together([stage.traffic for stage in self._stages])

    def device_peaks_bytes(self) -> list[int]:
        return device_peaks_bytes(self._devices)

    def _step(self) -> None:
        for stage in self._stages:
            stage.begin_step()
        outcomes = in_turn(self._stages, self._order.problem, self._weights, self._batches, lambda rank: nullcontext())
        self._losses = [loss for loss, _ in outcomes]
        self._weights = [
            _descended(rank_weights, new) for rank_weights, (_, new) in zip(self._weights, outcomes, strict=True)
        ]
        self._gradients = [gradients for _, gradients in outcomes] if self._order.keep_gradients else []

    def _placed(self, array: worker_group.Array, rank: int) -> Any:
        typed = array.astype(jnp.dtype(self._order.problem.precision))
        return jax.block_until_ready(jax.device_put(typed, self._devices[rank]))

    def _placed_batch(self, rank: int) -> tuple[Any, Any]:
        batch, labels = worker_group.batch_of(self._order.problem, self._order.seed, rank)
        return self._placed(batch, rank), self._placed(labels, rank)


@partial(jax.jit, donate_argnums=0)
def _descended(weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    with scope("update"):
        return [weight - LEARNING_RATE * gradient for weight, gradient in zip(weights, gradients, strict=True)]


def _arrays(arrays: list[Any]) -> list[worker_group.Array]:
    return [np.asarray(array) for array in arrays]
