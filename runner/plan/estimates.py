"""About how long the cells of a plan take: as long as in the newest run where it measured them, else by their work."""

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
    """About how long a repeat of each cell takes, in seconds, by cell_id.

    `over_limit_s` has the cells whose estimate is longer than their time limit (`timeout_s`), with that estimate; in
    `within_limit_s` theirs is the limit. `earlier` has what the newest run took, where it measured a cell.
    """

    within_limit_s: Mapping[str, float]
    over_limit_s: Mapping[str, float]
    earlier: Mapping[str, float]

    def total_s(self, repeats: Iterable[PlannedRepeat]) -> float:
        """Return the estimate of all these repeats together."""
        return sum(self.within_limit_s[planned.cell.cell_id] for planned in repeats)

    def without_limit_s(self, cell_id: str) -> float:
        """Return the estimate of a repeat were there no time limit."""
        return self.over_limit_s.get(cell_id, self.within_limit_s[cell_id])


def estimates(results: Path, cells: Sequence[Cell]) -> Estimates:
    """Return about how long a repeat of each cell takes: as long as before where it was measured before."""
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
    """Return what each cell's process took in the newest run, in seconds; the best estimate there is."""
    from statistics import median

    from keras_matrix.records.store import Results

    newest = Results(results).latest()
    records = newest.load()[0] if newest else []
    taken: dict[str, list[float]] = {}
    for record in records:
        if record.harness.wall_time_s:
            taken.setdefault(record.cell_id, []).append(record.harness.wall_time_s)
    return {cell: median(walls) for cell, walls in taken.items()}
