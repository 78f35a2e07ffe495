"""TensorFlow: `tf.distribute.MirroredStrategy`, under which Keras's own `fit` runs the step of each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from keras_matrix.models.fc.native.tensorflow import reserve
from keras_matrix.models.fc.profiled import SCOPE, by_profiling, seen_by, tensorflow_collectives_s
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.replicas import FED_FROM_HOST, Replica, Replicas
from keras_matrix.records.settings import RESIDENT, Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.backends.tensorflow import repeated
from keras_matrix.runner.cell.batches import Batch, Feed, Feeder
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.replicated.groups import check_divisible, gradient_bytes, rows_of, semantics_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup, Undivided
from keras_matrix.runner.cell.work import update_counter


class NamedReduction(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """Sums on the first device, in a name scope by which the profiler's events are recognised.

    The default on a CPU, TensorFlow's collective operations, supports one strategy per process only.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self._scope = f"{SCOPE}{replicas}"

    def reduce_implementation(self, *arguments: Any, **named: Any) -> Any:
        """Reduce one value."""
        with tf.name_scope(self._scope):
            return super().reduce_implementation(*arguments, **named)

    def batch_reduce_implementation(self, *arguments: Any, **named: Any) -> Any:
        """Reduce several values."""
        with tf.name_scope(self._scope):
            return super().batch_reduce_implementation(*arguments, **named)


class Group(DeviceGroup):
    """Devices under a mirrored strategy."""

    divides_own_steps = False  # a step of its own need not scale its loss, as Keras's does

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._strategy: Any = None

    def reserve(self, job: Job) -> None:
        settings = self.settings
        reserve(settings.devices, settings.device, "devices")
        devices = [
            logical_device.name
            for logical_device in tf.config.list_logical_devices(settings.device.upper())[: settings.devices]
        ]
        sums = NamedReduction(settings.devices) if settings.device == "cpu" else None
        self._strategy = tf.distribute.MirroredStrategy(devices, sums)

    def building(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def prepare(self, model: Any) -> None:
        if getattr(model.optimizer, "gradient_accumulation_steps", None):
            raise Unsupported(
                "devices: Keras's optimizer cannot accumulate gradients under MirroredStrategy, which sums them "
                "within a condition; leave out gradient_accumulation_steps, or set devices: 1"
            )

    def feeder(self, batches: Sequence[Batch], undivided: Undivided) -> Feeder:
        check_divisible(self.settings, batches)
        source = self._distributed(batches)
        # The strategy's iterator does not count what it draws.
        return lambda needed_batches: Feed(source, lambda: None, None)

    def _distributed(self, batches: Sequence[Batch]) -> Any:
        """Return an endless data set of the batches whose elements go to the replicas one after the other.

        A data set of global batches would be cut into rows at every step.
        """
        device_count = self.settings.devices
        with tf.device("/device:CPU:0"):
            endless = repeated(
                [rows_of(batch, rank, device_count) for batch in batches for rank in range(device_count)]
            )
        return self._strategy.distribute_datasets_from_function(lambda context: endless)

    def replicas(self, model: Any, batch: Batch) -> Replicas:
        first_tensor = keras.tree.flatten(list(next(iter(self._distributed([batch])))))[0]
        values = [variable.value for variable in model.variables]
        copied = [value for value in values if len(getattr(value, "values", ())) == self.settings.devices]
        updates = self._of_each(update_counter(model.optimizer))
        samples = self._of_each(model._loss_tracker.count)
        semantics = semantics_of(model, per_replica=True)
        if self.settings.device != "cpu" and self.settings.feed == RESIDENT:
            semantics.append(FED_FROM_HOST)
        return Replicas(
            method="tf.distribute.MirroredStrategy",
            is_fit=True,
            replicas=[
                Replica(
                    copy.device,
                    int(local_batch.shape[0]),
                    updates[rank],
                    samples[rank],
                    peak_device_memory_bytes=self._peak_bytes(rank),
                )
                for rank, (local_batch, copy) in enumerate(
                    zip(self._strategy.experimental_local_results(first_tensor), copied[0].values, strict=True)
                )
            ],
            divided_weights=0,
            copied_weights=len(copied),
            gradient_bytes=gradient_bytes(model),
            semantics=semantics,
        )

    def communication(self, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
        device_count = self.settings.devices
        return by_profiling(
            lambda work: tensorflow_collectives_s(seen_by("tensorflow", work), device_count), run, steps, epochs
        )

    def _of_each(self, variable: Any) -> list[int]:
        """Return the value of a counter on each replica."""
        return [int(local_value) for local_value in self._strategy.experimental_local_results(variable.value)]

    def _peak_bytes(self, rank: int) -> int | None:
        if self.settings.device == "cpu":
            return None
        return int(tf.config.experimental.get_memory_info(f"GPU:{rank}")["peak"])
