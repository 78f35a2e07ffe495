"""Estimates how long the cells of a plan take: from the newest run that measured them, or from their work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.reader import Cell
    from keras_matrix.runner.plan.plan import PlannedRepeat


@dataclass(frozen=True, slots=True)
class Estimates:
    """The estimated duration of a repeat of each cell, in seconds, by cell_id.

    `over_limit_s` contains the estimates that exceed the time limit of their cell (`timeout_s`); `within_limit_s` has
    the limit for these cells. `earlier` contains the durations in the newest run.
    """

    within_limit_s: Mapping[str, float]
    over_limit_s: Mapping[str, float]
    earlier: Mapping[str, float]

    def total_s(self, repeats: Iterable[PlannedRepeat]) -> float:
        """Return the estimated duration of all these repeats."""
        return sum(self.within_limit_s[planned.cell.cell_id] for planned in repeats)

    def without_limit_s(self, cell_id: str) -> float:
        """Return the estimated duration of a repeat without its time limit."""
        return self.over_limit_s.get(cell_id, self.within_limit_s[cell_id])


def estimates(results: Path, cells: Sequence[Cell]) -> Estimates:
    """Return the estimates for a plan, from the newest run in the results folder if it measured the cell."""
    from keras_matrix.runner.matrix import catalog
    from keras_matrix.runner.plan.plan import estimate_s

    known, earlier = catalog.load(), earlier_wall_times(results)
    within_s, over_s = {}, {}
    for cell in cells:
        within_s[cell.cell_id] = found_s = estimate_s(cell, known, earlier)
        if found_s > cell.timeout_s:
            within_s[cell.cell_id], over_s[cell.cell_id] = cell.timeout_s, found_s
    return Estimates(within_s, over_s, earlier)


def earlier_wall_times(results: Path) -> dict[str, float]:
    """Return the duration of each cell's process in the newest run, in seconds."""
    from keras_matrix.records.store import Results

    newest = Results(results).latest()
    if newest is None:
        return {}
    from statistics import median

    taken: dict[str, list[float]] = {}
    for record in newest.load()[0]:
        if record.harness.wall_time_s:
            taken.setdefault(record.cell_id, []).append(record.harness.wall_time_s)
    return {cell: median(walls) for cell, walls in taken.items()}
