"""JAX over a network: a process per worker, each with one device of the mesh, and gloo's collectives between them.

The programs are those of jax_workers.py: every process compiles the same `shard_map` and runs its own part.

A module of its own: it runs in another process, a worker's own, and is imported only there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_matrix.models.fc import worker_group
from keras_matrix.models.fc.meeting import Meeting, free_port, located
from keras_matrix.models.fc.native.jax_workers import AXES, JaxWorker, JaxWorkerGroup
from keras_matrix.models.fc.worker_group import WorkerSpec, WorkerState, placement
from keras_matrix.models.process import take_share
from keras_matrix.records.fc.spec import WorkerPlacement
from keras_matrix.records.traces.request import TraceOrder

# XLA's pool has a thread per CPU of the process, of which a waiting collective or sleep occupies one.
LEAST_THREADS = 2


def join(meeting: Meeting) -> JaxRank:
    """Join the other workers and return this one. Raises `NotMet`, `NoSuchNetwork`, or JAX's error."""
    address = meeting.address()
    meeting.name_host()  # gloo listens at the address that the host's name has
    os.environ["NPROC"] = str(max(LEAST_THREADS, take_share(*meeting.here)))
    coordinator_address = meeting.exchanged(f"{address}:{free_port(address)}")[0]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address,
        meeting.order.problem.workers,
        meeting.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=max(1, int(meeting.timeout_s)),
        coordinator_bind_address=coordinator_address,
    )
    return JaxRank(meeting.order, meeting.rank)


class JaxRank(JaxWorkerGroup):
    """One worker's part of the arrays and of the compiled step."""

    # A step waits for the other processes. If it does not depend on the previous one, as in a mode that only goes
    # forward, two processes could otherwise begin their collectives in different orders.
    steps_ahead = 1

    def __init__(self, order: WorkerSpec, rank: int) -> None:
        self._rank = rank
        super().__init__(order)

    def loss(self) -> float:
        return float(_own(self._losses)[0])

    def states(self) -> list[WorkerState]:
        gradients, weights = ([_own(array) for array in arrays] for arrays in (self._gradients, self._weights))
        return [WorkerState(self.loss(), gradients, weights)]

    def places(self) -> list[WorkerPlacement]:
        devices = self._batch[0].addressable_shards[0].device
        weights, batch = ([_own(array) for array in arrays] for arrays in (self._weights, self._batch))
        return [located(placement(self._rank, [devices], weights, batch), self._order, self._rank)]

    def device_peaks_bytes(self) -> list[int]:
        return []

    def watched(self, steps: int, epochs: int) -> list[tuple[float, float]]:
        """Run further epochs; return for each the seconds of a step, and those of it inside collectives."""
        communication = self.communication(steps, epochs)
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

        problem, dtype = self._order.problem, jnp.dtype(self._order.problem.precision)
        lone_worker = JaxWorker(Mesh(np.asarray(jax.local_devices()).reshape(1, 1), AXES))
        step = jax.jit(partial(self._local, lone_worker))
        weights, batch = ([jnp.asarray(_own(array)) for array in arrays] for arrays in (self._weights, self._batch))
        summed = jax.jit(
            jax.shard_map(lambda x: jax.lax.psum(x, AXES), mesh=self._mesh, in_specs=P(AXES), out_specs=P())
        )

        def summing(size_bytes: int) -> Callable[[], object]:
            array = self._placed(np.zeros(problem.workers * max(1, size_bytes // dtype.itemsize)), P(AXES))
            return lambda: jax.block_until_ready(summed(array))

        total = sum(weight.nbytes for weight in weights)
        workers = CollectiveWorkers(problem.workers, summing, lambda: jax.block_until_ready(step(weights, batch)))
        store(folder, self._rank, workers, total)

    def _placed(self, array: worker_group.Array, spec: P) -> Any:
        """Place this worker's part: every worker draws the complete array."""
        typed = array.astype(jnp.dtype(self._order.problem.precision))
        sharding = NamedSharding(self._mesh, spec)
        return jax.block_until_ready(jax.make_array_from_callback(typed.shape, sharding, lambda part: typed[part]))


def _own(array: Any) -> worker_group.Array:
    """Return the piece of an array that is in this process."""
    return np.asarray(array.addressable_shards[0].data)
