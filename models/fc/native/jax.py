"""JAX: one program over a mesh of devices (`shard_map`), compiled once for all workers; fc_pipeline: jax_stages.py."""

from __future__ import annotations

import math
import resource
from collections import deque
from collections.abc import Callable, Sequence
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
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, require_devices
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.fc.spec import LEARNING_RATE, FcProblem, Kind, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic
from keras_matrix.records.traces.request import TraceOrder

# The mesh of every problem has both; where the work is divided one way only, one of them is 1 long.
AXES = tuple(axis.value for axis in Axis)
# XLA's CPU client keeps up to 32 computations of a device in flight and starts them in no fixed order. With more steps
# queued than that, one device may wait for a step that the other has not begun: their collective never ends, and XLA
# aborts after 40 s (jaxlib 0.10.2: epochs of 31 steps pass, of 34 fail). Half as many never leave a device idle.
STEPS_AHEAD = 16


def reserve(workers: int, device: str) -> None:
    """Make virtual devices of the CPU, or check that there is a real one for each worker."""
    if device == "cpu":
        jax.config.update("jax_num_cpu_devices", workers)
    # Where there is no accelerator, JAX shows the CPU in its place.
    found = [one for one in jax.devices() if device == "cpu" or one.platform != "cpu"]
    require_devices("jax", device, len(found), workers)


def make(order: WorkerSpec) -> WorkerGroup:
    """Return the crew."""
    if order.problem.kind is Kind.PIPELINE:
        from keras_matrix.models.fc.native.jax_stages import JaxStages

        return JaxStages(order)
    return JaxCrew(order)


class JaxWorker(Worker):
    """Every worker at once: inside `shard_map` one trace stands for all."""

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
        # Real numbers hold where XLA drops what only orders: it does not know that 0 x is 0, since x may be NaN.
        nothing = 0 * sum(array[:1, :1] for array in arrays)
        return [jax.lax.dynamic_update_slice(array, array[:1, :1] + nothing, (0, 0)) for array in arrays]


class JaxCrew:
    """Arrays over a mesh, and the compiled step that takes and gives back the weights."""

    def __init__(self, order: WorkerSpec) -> None:
        problem = order.problem
        self._order = order
        shape = (problem.data_size, problem.model_size)
        self._mesh = Mesh(np.asarray(jax.devices()[: problem.workers]).reshape(shape), AXES)
        # Where JAX divides the work itself, the program is that of one worker.
        self._worker = JaxWorker(Mesh(self._mesh.devices[:1, :1], AXES) if self._divides else self._mesh)
        weights, *specs = _specs(problem)
        self._weights = self._placed_weights(weights)
        batch, labels = map(self._placed, layout.draw_batch(problem, order.seed), specs)
        self._batch = batch, labels
        self._step = self._compiled(self._worker)
        self._losses: Any = None
        self._gradients: list[Any] = []

    def run(self, steps: int) -> None:
        """Take steps; Python is at most `STEPS_AHEAD` of them ahead of JAX and waits for the last one."""
        in_flight: deque[Any] = deque()
        for _ in range(steps):
            self._weights, self._losses, self._gradients = self._step(self._weights, self._batch)
            in_flight.append(self._losses)
            if len(in_flight) == STEPS_AHEAD:
                in_flight.popleft().block_until_ready()
        jax.block_until_ready((self._weights, self._losses))

    def loss(self) -> float:
        """Return the sum of the workers' losses."""
        return float(np.sum(np.asarray(self._losses, np.float64)))

    def kept(self) -> list[WorkerState]:
        """Return each worker's shards."""
        losses = np.zeros(self._order.problem.workers)
        losses[: len(self._losses)] = self._losses  # one for all where JAX divides the work itself
        held = zip(self._of_each(self._gradients), self._of_each(self._weights), strict=True)
        return [WorkerState(float(loss), *arrays) for loss, arrays in zip(losses, held, strict=True)]

    def places(self) -> list[WorkerPlacement]:
        """Read devices and shapes from the shards."""
        batch, labels = (_shards(part) for part in self._batch)
        weights = [_shards(weight) for weight in self._weights]
        return [
            WorkerPlacement(
                rank,
                str(batch[rank].device),
                [list(shards[rank].data.shape) for shards in weights],
                list(batch[rank].data.shape),
                list(labels[rank].data.shape),
            )
            for rank in range(self._order.problem.workers)
        ]

    def traffic(self) -> Traffic:
        """Return what was counted while the step was traced, or what JAX put into the compiled step."""
        if not self._divides:
            return self._worker.traffic
        return hlo.traffic_of(self._text(), self._order.problem.workers)

    def peaks_bytes(self) -> list[int]:
        """Return the peak of this process."""
        return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]

    def device_peaks_bytes(self) -> list[int]:
        """Return the peak of JAX's allocator on each worker's GPU."""
        return device_peaks_bytes(list(self._mesh.devices.flat))

    def communication(self, steps: int, epochs: int) -> Communication | None:
        """Have JAX's profiler see the collective instructions of the compiled step."""
        if not self.traffic().calls:
            return None
        return by_profiling(partial(_inside_s, hlo.collectives(self._text())), self.run, steps, epochs)

    def traced(self, order: TraceOrder) -> None:
        """Have the profiler record more steps, of all workers in one file."""
        from keras_matrix.models.profiling import load, record_epochs

        record_epochs(load("jax"), order, partial(self.run, 1))

    def close(self) -> None:
        """There is nothing to end."""

    @property
    def _divides(self) -> bool:
        """Whether JAX divides the work, by what it is told of the arrays."""
        return self._order.problem.partition == "named_sharding"

    def _text(self) -> str:
        """Return the compiled step as XLA writes it."""
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
                check_vma=False,  # a gathered gradient is the same everywhere, which the checker cannot see
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
        """Return what each worker holds of these arrays."""
        shards = [_shards(array) for array in arrays]
        return [[np.asarray(own[rank].data) for own in shards] for rank in range(self._order.problem.workers)]


def _specs(problem: FcProblem) -> tuple[P, P, P]:
    """Return how weights, batch and labels are cut: by rows of the mesh, its columns, or both."""
    # In fc_phy every worker has weights of its own: the whole of them is the workers' one above the other.
    rows = Axis.DATA if problem.kind in (Kind.SHARDED, Kind.PHYSICS) else Axis.MODEL
    return P(rows.value), P(*AXES), P(AXES)


def _shards(array: Any) -> list[Any]:
    """Return an array's pieces in the order of the workers."""
    return sorted(array.addressable_shards, key=lambda shard: shard.device.id)


def _inside_s(names: set[str], run: Callable[[], None]) -> float:
    """Return the seconds that instructions of these names took while something ran, the mean over the devices."""
    return jax_collectives_s(seen_by("jax", run), names)
