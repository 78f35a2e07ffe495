"""JAX: `keras.distribution.DataParallel` or `ModelParallel`; XLA's partitioner adds the collectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from keras_matrix.models.fc.native.jax import reserve
from keras_matrix.models.fc.native.jax_workers import STEPS_AHEAD
from keras_matrix.models.fc.profiled import by_profiling, jax_collectives_s, seen_by
from keras_matrix.records.fc.communication import Communication
from keras_matrix.records.replicas import Replica, Replicas
from keras_matrix.records.settings import DATA, RESIDENT, Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.batches import Batch, Feeder, counted_feed
from keras_matrix.runner.cell.job import Job
from keras_matrix.runner.cell.replicated.groups import check_divisible, gradient_bytes, semantics_of
from keras_matrix.runner.cell.replicated.interface import DeviceGroup, Undivided
from keras_matrix.runner.cell.work import update_counter

BATCH, MODEL = "batch", "model"


class LastAxis(keras.distribution.ModelParallel):  # type: ignore[misc]
    """Divides each weight along its last axis, if the devices divide that, and adds it to the layout map by its path.

    Columns of a dense kernel, filters of a convolution and the units of their biases belong together, so that only
    the outputs of a layer are communicated.
    """

    def get_variable_layout(self, variable: Any) -> Any:
        """Return the layout of a variable: that of the layout map, or by its shape."""
        axis_length = self.device_mesh.shape[self.device_mesh.axis_names.index(MODEL)]
        shape = tuple(variable.shape)
        if shape and shape[-1] % axis_length == 0 and self._layout_map[variable.path] is None:
            self._layout_map[variable.path] = (*[None] * (len(shape) - 1), MODEL)
        return super().get_variable_layout(variable)


class Group(DeviceGroup):
    """Devices under a distribution of Keras."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._distribution: Any = None

    def reserve(self, job: Job) -> None:
        reserve(self.settings.devices, self.settings.device, "devices")
        devices = keras.distribution.list_devices(self.settings.device)[: self.settings.devices]
        if self.settings.distribution == DATA:
            self._distribution = keras.distribution.DataParallel(devices=devices)
        else:
            mesh = keras.distribution.DeviceMesh((1, len(devices)), (BATCH, MODEL), devices)
            self._distribution = LastAxis(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name=BATCH)
        keras.distribution.set_distribution(self._distribution)

    def prepare(self, model: Any) -> None:
        if self.settings.distribution == DATA or any(map(_is_divided, model.trainable_variables)):
            return
        raise Unsupported(
            f"distribution: no weight of the workload has a last axis that {self.settings.devices} devices divide; set "
            "distribution: data, or another number of devices"
        )

    def callbacks(self) -> list[Any]:
        return [Throttle()] if self.settings.device == "cpu" else []

    def feeder(self, batches: Sequence[Batch], undivided: Undivided) -> Feeder:
        check_divisible(self.settings, batches)
        if self.settings.feed != RESIDENT:
            return undivided(batches)  # Keras divides the rows of each batch in its own iterator
        placed_batches = [self._placed(batch) for batch in batches]
        return lambda needed_batches: counted_feed(placed_batches)

    def _placed(self, batch: Batch) -> Batch:
        """Return the batch with its rows on their devices, where Keras's iterator leaves them."""

        def on_devices(part: Any) -> Any:
            return jax.device_put(part, self._distribution.get_data_layout(part.shape).backend_layout)

        return tuple(jax.block_until_ready(keras.tree.map_structure(on_devices, part)) for part in batch)

    def replicas(self, model: Any, batch: Batch) -> Replicas:
        """Return the parts of the devices that have a shard of every variable and of the batch."""
        rows = {shard.device: shard.data.shape[0] for shard in _first_array(self._placed(batch)).addressable_shards}
        values = [variable.value for variable in model.variables]
        for value in values:
            rows = {device: count for device, count in rows.items() if device in value.sharding.device_set}
        divided = sum(map(_is_divided, model.variables))
        counter = update_counter(model.optimizer)
        updates = (
            {shard.device: int(shard.data) for shard in counter.value.addressable_shards} if counter is not None else {}
        )
        sample_count = int(keras.ops.convert_to_numpy(model._loss_tracker.count))
        is_data = self.settings.distribution == DATA
        return Replicas(
            method=f"keras.distribution.{'DataParallel' if is_data else 'ModelParallel'}",
            is_fit=True,
            replicas=[
                Replica(
                    str(device),
                    count,
                    updates.get(device),
                    sample_count * count // self.settings.batch_size,
                    peak_device_memory_bytes=(device.memory_stats() or {}).get("peak_bytes_in_use"),
                )
                for device, count in sorted(rows.items(), key=lambda item: item[0].id)
            ],
            divided_weights=divided,
            copied_weights=len(values) - divided,
            gradient_bytes=gradient_bytes(model) if is_data else 0,
            semantics=semantics_of(model, per_replica=False),
        )

    def communication(self, run: Callable[[int], None], steps: int, epochs: int) -> Communication | None:
        return by_profiling(lambda work: jax_collectives_s(seen_by("jax", work), COLLECTIVES), run, steps, epochs)


class _Collectives:
    """The instructions that XLA's partitioner names after their operation, such as all-reduce.5."""

    NAME = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\b")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.NAME.match(name) is not None


COLLECTIVES = _Collectives()


class Throttle(keras.callbacks.Callback):  # type: ignore[misc]
    """Waits for every few steps on a CPU, where XLA never ends a collective if too many steps are queued.

    See `models.fc.native.jax_workers.STEPS_AHEAD`. A hook after each batch would synchronise every step.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        step, steps_left = self.model.train_function, STEPS_AHEAD

        def throttled(*arguments: Any) -> Any:
            nonlocal steps_left
            outputs = step(*arguments)
            steps_left -= 1
            if not steps_left:
                jax.block_until_ready(outputs[0])
                steps_left = STEPS_AHEAD
            return outputs

        self._plain = step
        self.model.train_function = throttled

    def on_train_end(self, logs: Any = None) -> None:
        self.model.train_function = self._plain


def _is_divided(variable: Any) -> bool:
    value = variable.value
    return bool(value.addressable_shards[0].data.size < value.size)


def _first_array(batch: Batch) -> Any:
    return keras.tree.flatten(list(batch))[0]
