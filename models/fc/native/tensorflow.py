"""TensorFlow: the logical devices and the worker group that `models.fc.native` requests."""

from __future__ import annotations

import tensorflow as tf

from keras_matrix.models.fc.meeting import Meeting
from keras_matrix.models.fc.native.tensorflow_workers import TensorFlowWorkerGroup
from keras_matrix.models.fc.worker_group import WorkerGroup, WorkerSpec, require_devices


def reserve(workers: int, device: str, key: str = "workers") -> None:
    """Create logical devices of the CPU, or check that there is a real one for each worker."""
    physical = tf.config.list_physical_devices(device.upper())
    if device != "cpu":
        require_devices("tensorflow", device, len(physical), workers, key)
        return
    configurations = [tf.config.LogicalDeviceConfiguration() for _ in range(workers)]
    tf.config.set_logical_device_configuration(physical[0], configurations)


def make(order: WorkerSpec) -> TensorFlowWorkerGroup:
    """Return the worker group."""
    if order.problem.partition == "mirrored_strategy" and order.problem.workers > 1:
        from keras_matrix.models.fc.native.tensorflow_rank import MirroredWorkerGroup

        return MirroredWorkerGroup(order)
    return TensorFlowWorkerGroup(order)


def join(meeting: Meeting) -> WorkerGroup:
    """Join the other worker processes and return this worker."""
    from keras_matrix.models.fc.native import tensorflow_rank

    return tensorflow_rank.join(meeting)
