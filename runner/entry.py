"""One checked entry of a matrix, whichever file or command it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from records.settings import Scalar
from records.traces.asked import Trace
from runner.catalog import Workload
from runner.grammar import Axes

if TYPE_CHECKING:
    from runner.tasks.asked import TaskAsked


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
    task: TaskAsked | None = None
    trace: Trace | None = None
    set_by_matrix: str = ""
    sets_device: bool = False
