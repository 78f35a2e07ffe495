"""JAX: fc_pipeline. The weights of each stage, and all results computed from them, are on a separate device.

`shard_map` runs one program on all devices, which would require equal stages. Here each stage has compiled programs for
one micro-batch on its device; JAX dispatches asynchronously, so that devices work at the same time.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_matrix.models.fc import layout
from keras_matrix.models.fc.interface import Tensor, scope
from keras_matrix.models.fc.stages import Boxes, LocalStage, in_turn
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, WorkerState, device_peaks_bytes, placement
from keras_matrix.records.fc.spec import LEARNING_RATE, WorkerPlacement
from keras_matrix.records.fc.traffic import Traffic, together

_compiled = cache(jax.jit)


class JaxStages(WorkerGroup):
    """A worker group of stages, which have no collectives."""

    backend = "jax"

    def __init__(self, order: WorkerSpec) -> None:
        problem = order.problem
        self._order = order
        self._devices = jax.devices()[: problem.workers]
        ranks, boxes = range(problem.workers), Boxes()
        self._weights = [
            [self._placed(weight, rank) for weight in layout.weights_of(problem, order.seed, rank)] for rank in ranks
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
        found = in_turn(self._stages, self._order.problem, self._weights, self._batches, lambda rank: nullcontext())
        self._losses = [loss for loss, _ in found]
        self._weights = [_descended(own, new) for own, (_, new) in zip(self._weights, found, strict=True)]
        self._gradients = [gradients for _, gradients in found] if self._order.keep_gradients else []

    def _placed(self, array: layout.Array, rank: int) -> Any:
        typed = array.astype(jnp.dtype(self._order.problem.precision))
        return jax.block_until_ready(jax.device_put(typed, self._devices[rank]))

    def _placed_batch(self, rank: int) -> tuple[Any, Any]:
        batch, labels = layout.batch_of(self._order.problem, self._order.seed, rank)
        return self._placed(batch, rank), self._placed(labels, rank)


@partial(jax.jit, donate_argnums=0)
def _descended(weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    with scope("update"):
        return [weight - LEARNING_RATE * gradient for weight, gradient in zip(weights, gradients, strict=True)]


def _arrays(arrays: list[Any]) -> list[layout.Array]:
    return [np.asarray(array) for array in arrays]
