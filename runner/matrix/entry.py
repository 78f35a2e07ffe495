"""A checked entry of a matrix, read from a file or built by a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.records.settings import Scalar
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.matrix.catalog import Workload
from keras_matrix.runner.matrix.grammar import Axes

if TYPE_CHECKING:
    from keras_matrix.runner.tasks.request import TaskRequest


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a cell may be measured: keys of a matrix that only place and are not part of its identity.

    `machine` is a machine's type or name and `gpu_model` a part of its GPUs' name, both "" for any.
    """

    machine: str = ""
    gpu_model: str = ""
    memory_gib: float = 0.0
    across_nodes: bool = False


ANYWHERE = Placement()


def placement_of(limits: Mapping[str, Scalar]) -> Placement:
    """Return the placement that the limits of an entry name."""
    return Placement(
        str(limits.get("machine", "")),
        str(limits.get("gpu_model", "")),
        float(limits.get("memory_gib", 0.0)),
        bool(limits.get("across_nodes", False)),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of `cells` or `tasks`, or an include, as axes with at least one value each.

    For a task, `backends` contains the labels of the compared axis. `set_by_matrix` is the setting of the same name;
    `sets_device` is false if the device is the grammar's default; `stalls` is true for an arm of a stall analysis.
    """

    where: str
    line: int | None
    workload: Workload
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
