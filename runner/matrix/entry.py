"""One checked entry of a matrix, whichever file or command it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_matrix.records.settings import Scalar
from keras_matrix.records.traces.request import Trace
from keras_matrix.runner.matrix.catalog import Workload
from keras_matrix.runner.matrix.grammar import Axes

if TYPE_CHECKING:
    from keras_matrix.runner.tasks.request import TaskRequest


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of `cells` or `tasks`, or an include: what it measures, as axes with at least one value each.

    Of a task `backends` holds the labels of the axis that is compared. `set_by_matrix` is that of `Settings`.
    `sets_device` is false where its device is the grammar's default.
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
