"""JAX: the devices and the worker group that `models.fc.native` requests."""

from __future__ import annotations

import jax

from keras_matrix.models.fc.meeting import Meeting
from keras_matrix.models.fc.native.jax_workers import JaxWorkerGroup
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, require_devices
from keras_matrix.records.fc.spec import Parallelism


def reserve(workers: int, device: str, key: str = "workers") -> None:
    """Create virtual devices of the CPU, or check that there is a real one for each worker."""
    if device == "cpu":
        jax.config.update("jax_num_cpu_devices", workers)
    # Without an accelerator, JAX lists the CPU instead.
    devices = [candidate for candidate in jax.devices() if device == "cpu" or candidate.platform != "cpu"]
    require_devices("jax", device, len(devices), workers, key)


def make(order: WorkerSpec) -> WorkerGroup:
    """Return the worker group."""
    if order.problem.kind is Parallelism.PIPELINE:
        from keras_matrix.models.fc.native.jax_workers import JaxStages

        return JaxStages(order)
    return JaxWorkerGroup(order)


def join(meeting: Meeting) -> WorkerGroup:
    """Join the other worker processes and return this worker."""
    from keras_matrix.models.fc.native import jax_rank

    return jax_rank.join(meeting)
