"""JAX: one program over a mesh of devices (`shard_map`), compiled once for all workers; fc_pipeline: jax_stages.py."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_matrix.models.fc import hlo, layout
from keras_matrix.models.fc.collective_time import jax_collectives_s
from keras_matrix.models.fc.device_memory import device_peaks_bytes
from keras_matrix.models.fc.interface import Axis, Loss, Tensor, Worker
from keras_matrix.models.fc.profiled import by_profiling, seen_by
from keras_matrix.models.fc.programs import program
from keras_matrix.models.fc.scopes import scope
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, placement, require_devices
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem, Kind, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic

# The mesh of every problem has both; if the work is divided in one way only, one of them has length 1.
AXES = tuple(axis.value for axis in Axis)
# XLA's CPU client has up to 32 computations of a device in flight and starts them in no fixed order. With more queued
# steps, a device may wait for a step that another one has not begun: their collective never ends, and XLA aborts after
# 40 s (jaxlib 0.10.2: epochs of 31 steps pass, of 34 fail). Half as many steps never leave a device idle.
STEPS_AHEAD = 16


def reserve(workers: int, device: str) -> None:
    """Create virtual devices of the CPU, or check that there is a real one for each worker."""
    if device == "cpu":
        jax.config.update("jax_num_cpu_devices", workers)
    # Without an accelerator, JAX lists the CPU instead.
    found = [one for one in jax.devices() if device == "cpu" or one.platform != "cpu"]
    require_devices("jax", device, len(found), workers)


def make(order: WorkerSpec) -> WorkerGroup:
    """Return the worker group."""
    if order.problem.kind is Kind.PIPELINE:
        from keras_matrix.models.fc.native.jax_stages import JaxStages

        return JaxStages(order)
    return JaxWorkerGroup(order)


class JaxWorker(Worker):
    """All workers: a single tracing inside `shard_map` represents each of them."""

    def __init__(self, mesh: Mesh, axes: tuple[str, ...] = AXES, whole: Worker | None = None) -> None:
        super().__init__(math.prod(mesh.shape[axis] for axis in axes), whole)
        self._mesh, self._axes = mesh, axes

    def along(self, axis: Axis) -> Worker:
        return type(self)(self._mesh, (axis.value,), self)

    def gradient(self, loss: Loss, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        value, gradients = jax.value_and_grad(loss)(list(weights))
        return value, gradients

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


class JaxWorkerGroup(WorkerGroup):
    """Arrays over a mesh, and the compiled step, which takes and returns the weights."""

    backend = "jax"

    def __init__(self, order: WorkerSpec) -> None:
        problem = order.problem
        self._order = order
        shape = (problem.data_size, problem.model_size)
        self._mesh = Mesh(np.asarray(jax.devices()[: problem.workers]).reshape(shape), AXES)
        # If JAX divides the work itself, the program is that of one worker.
        self._worker = JaxWorker(Mesh(self._mesh.devices[:1, :1], AXES) if self._divides else self._mesh)
        weights, *specs = _specs(problem)
        self._weights = self._placed_weights(weights)
        batch, labels = map(self._placed, layout.draw_batch(problem, order.seed), specs)
        self._batch = batch, labels
        self._step = self._compiled(self._worker)
        self._losses: Any = None
        self._gradients: list[Any] = []

    def run(self, steps: int) -> None:
        """Run steps; Python is at most `STEPS_AHEAD` steps ahead of JAX and waits for the last one."""
        in_flight: deque[Any] = deque()
        for _ in range(steps):
            self._weights, self._losses, self._gradients = self._step(self._weights, self._batch)
            in_flight.append(self._losses)
            if len(in_flight) == STEPS_AHEAD:
                in_flight.popleft().block_until_ready()
        jax.block_until_ready((self._weights, self._losses))

    def loss(self) -> float:
        return float(np.sum(np.asarray(self._losses, np.float64)))

    def states(self) -> list[WorkerState]:
        losses = np.zeros(self._order.problem.workers)
        losses[: len(self._losses)] = self._losses  # a single one if JAX divides the work itself
        arrays = zip(self._of_each(self._gradients), self._of_each(self._weights), strict=True)
        return [WorkerState(float(loss), *own) for loss, own in zip(losses, arrays, strict=True)]

    def places(self) -> list[WorkerPlacement]:
        weights, batch = (list(map(_shards, arrays)) for arrays in (self._weights, self._batch))
        return [
            placement(rank, [batch[0][rank].device], *([own[rank].data for own in part] for part in (weights, batch)))
            for rank in range(self._order.problem.workers)
        ]

    def traffic(self) -> Traffic:
        """Return the counts while the step was traced, or those of the collectives in the compiled step."""
        if not self._divides:
            return self._worker.traffic
        return hlo.traffic_of(self._text(), self._order.problem.workers)

    def device_peaks_bytes(self) -> list[int]:
        return device_peaks_bytes(list(self._mesh.devices.flat))

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Measure the collective instructions of the compiled step with JAX's profiler."""
        if not self.traffic().calls:
            return None
        names = hlo.collectives(self._text())
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
        return jax.jit(step, donate_argnums=0)

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
        drawn = list(layout.draw_weights(problem, self._order.seed))
        if problem.kind is Kind.PHYSICS:
            drawn = [np.concatenate([weight] * problem.workers) for weight in drawn] * problem.phy_blocks
        return [self._placed(weight, spec) for weight in drawn]

    def _placed(self, array: layout.Array, spec: P) -> Any:
        typed = array.astype(jnp.dtype(self._order.problem.precision))
        return jax.block_until_ready(jax.device_put(typed, NamedSharding(self._mesh, spec)))

    def _of_each(self, arrays: Sequence[Any]) -> list[list[layout.Array]]:
        """Return each worker's pieces of these arrays."""
        shards = [_shards(array) for array in arrays]
        return [[np.asarray(own[rank].data) for own in shards] for rank in range(self._order.problem.workers)]


def _specs(problem: FcProblem) -> tuple[P, P, P]:
    """Return how weights, batch and labels are divided: by rows of the mesh, its columns, or both."""
    # In fc_phy every worker has its own weights, which are stacked.
    rows = Axis.DATA if problem.kind in (Kind.SHARDED, Kind.PHYSICS) else Axis.MODEL
    return P(rows.value), P(*AXES), P(AXES)


def _shards(array: Any) -> list[Any]:
    """Return an array's pieces in the order of the workers."""
    return sorted(array.addressable_shards, key=lambda shard: shard.device.id)
