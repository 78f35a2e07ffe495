"""A checked entry of a matrix, read from a file or built by a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.records.host.device_lists import ANY_GPU, GpuChoice
from keras_matrix.records.settings import Scalar
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.matrix.catalog import CatalogWorkload
from keras_matrix.runner.matrix.grammar import Axes

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.task_rules import TaskRequest


@dataclass(frozen=True, slots=True)
class PlacementKeys:
    """Where a cell may be measured: keys of a matrix that only place and are not part of its identity.

    `machine` is a machine's type or name, "" for any; `gpus` are the GPUs of a machine that it may use. With
    `parallel_devices` other comparisons may run on other GPUs meanwhile, with `across_gpus` its blocks on several.
    """

    machine: str = ""
    gpus: GpuChoice = ANY_GPU
    memory_gib: float = 0.0
    across_nodes: bool = False
    parallel_devices: bool = False
    across_gpus: bool = False


ANYWHERE = PlacementKeys()


def placement_of(limits: Mapping[str, Scalar]) -> PlacementKeys:
    """Return the placement that the limits of an entry name."""
    return PlacementKeys(
        str(limits.get("machine", "")),
        GpuChoice(str(limits.get("gpus", ANY_GPU.names)), str(limits.get("gpu_model", ANY_GPU.model))),
        float(limits.get("memory_gib", 0.0)),
        bool(limits.get("across_nodes", False)),
        bool(limits.get("parallel_devices", False) or limits.get("across_gpus", False)),
        bool(limits.get("across_gpus", False)),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of `cells` or `tasks`, or an include, as axes with at least one value each.

    For a task, `backends` contains the labels of the compared axis. `set_by_matrix` is the setting of the same name;
    `sets_device` is false if the device is the grammar's default; `stalls` is true for an arm of a stall analysis.
    """

    where: str
    line: int | None
    workload: CatalogWorkload
    backends: tuple[str, ...]
    axes: Axes
    params: Axes
    limits: dict[str, Scalar]
    excludes: tuple[Axes, ...] = ()
    task: TaskRequest | None = None
    trace: Trace | None = None
    set_by_matrix: str = ""
    sets_device: bool = False
    stalls: bool = False
