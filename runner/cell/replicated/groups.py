"""The devices of a cell: which ones train, how a batch is divided among them, and which workloads cannot be divided."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

import keras

from keras_matrix.records import replicas
from keras_matrix.records.backends import TABLE
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.runner.cell.backends import Unsupported
from keras_matrix.runner.cell.batches import Batch
from keras_matrix.runner.cell.options import stored_bytes
from keras_matrix.runner.cell.replicated.interface import DeviceGroup

OVERRIDES = (
    "devices: the workload overrides {}, whose computation {} does not divide among devices as Keras's own; set "
    "devices: 1, or leave the method to Keras"
)


def group_of(settings: Settings) -> DeviceGroup:
    """Return the devices of a cell."""
    if settings.devices == 1:
        return DeviceGroup()
    module = importlib.import_module(f"keras_matrix.runner.cell.replicated.{settings.backend}")
    return cast(DeviceGroup, module.Group(settings))


def check_workload(settings: Settings, group: DeviceGroup, overridden: Sequence[str]) -> None:
    """Raise `Unsupported` if the workload overrides methods of a training step that the group does not divide."""
    if overridden and settings.devices > 1 and not group.divides_own_steps:
        raise Unsupported(OVERRIDES.format(", ".join(overridden), settings.backend))


def check_resolved(settings: Settings, model: Any) -> None:
    """Raise `Unsupported` for options and data that the workload sets itself, with which devices cannot divide it."""
    if settings.devices == 1:
        return
    if settings.feed == PIPELINE:
        raise Unsupported(
            "devices: the workload returns its own source of batches, which is not divided among devices; set feed: "
            "device_resident or host_fed, or devices: 1"
        )
    if reasons := replicas.problems(settings):
        raise Unsupported("; ".join(reasons))
    backend = TABLE[settings.backend]
    if model.jit_compile and not backend.compiles_replicas:
        raise Unsupported(
            f"devices: the workload compiles its model with jit_compile=True, but {backend.name} does not compile a "
            f"step on several devices ({backend.not_compiled}); set jit: false in the matrix, or devices: 1"
        )


def check_divisible(settings: Settings, batches: Sequence[Batch]) -> None:
    """Raise `Unsupported` if an array of a batch does not have a row for each sample, which is what is divided."""
    for part in keras.tree.flatten(list(batches[:1])):
        shape = tuple(getattr(part, "shape", ()))
        if not shape or shape[0] != settings.batch_size:
            raise Unsupported(
                f"devices: an array of the workload's batches has shape {shape}, not {settings.batch_size} rows, which "
                "devices divide; give every input and label a row for each sample, or set devices: 1"
            )


def rows_of(batch: Batch, rank: int, size: int) -> Batch:
    """Return the rows of a batch that belong to one of `size` devices."""

    def own(part: Any) -> Any:
        share = part.shape[0] // size
        return part[rank * share : (rank + 1) * share]

    return tuple(keras.tree.map_structure(own, part) for part in batch)


def semantics_of(model: Any, per_replica: bool) -> list[str]:
    """Return what layers of the model mean on several devices: of a replica, or of the global batch."""
    layers = list(model._flatten_layers())
    names = {type(layer).__name__ for layer in layers}
    semantics = []
    if any(name.endswith("BatchNormalization") for name in names):
        semantics.append(
            "batch normalisation uses the statistics of each replica's rows, not of the global batch"
            if per_replica
            else "batch normalisation uses the statistics of the global batch, as on one device"
        )
    if per_replica and any(layer._seed_generators for layer in layers):
        semantics.append("random layers, such as dropout, draw for each replica's rows: losses differ from one device")
    if per_replica and any(getattr(layer, "mask_zero", False) or type(layer).__name__ == "Masking" for layer in layers):
        semantics.append("losses without masked entries are means of the replicas' means, not of all entries")
    return semantics


def gradient_bytes(model: Any) -> int:
    """Return the size of the gradients of a model in its weights' type."""
    return stored_bytes(model.trainable_variables)
