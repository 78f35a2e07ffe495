"""Chooses the devices of a cell, and refuses workloads whose work cannot be divided among them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

from keras_matrix.records import replicas
from keras_matrix.records.backends import TABLE
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.runner.cell.backends import Unsupported
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


def check_workload(settings: Settings, group: DeviceGroup, own: Sequence[str]) -> None:
    """Raise `Unsupported` if the workload overrides methods of a training step that the group does not divide."""
    if own and settings.devices > 1 and not group.divides_own_steps:
        raise Unsupported(OVERRIDES.format(", ".join(own), settings.backend))


def check_resolved(settings: Settings, model: Any) -> None:
    """Raise `Unsupported` for options and data that the workload sets itself, with which devices cannot divide it."""
    if settings.devices == 1:
        return
    if settings.feed == PIPELINE:
        raise Unsupported(
            "devices: the workload returns its own source of batches, which is not divided among devices; set feed: "
            "device_resident or host_fed, or devices: 1"
        )
    if found := replicas.problems(settings):
        raise Unsupported("; ".join(found))
    own = TABLE[settings.backend]
    if model.jit_compile and not own.compiles_replicas:
        raise Unsupported(
            f"devices: the workload compiles its model with jit_compile=True, but {own.name} does not compile a step "
            f"on several devices ({own.not_compiled}); set jit: false in the matrix, or devices: 1"
        )
