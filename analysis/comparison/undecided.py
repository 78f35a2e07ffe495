"""What would decide the rows that are not separable: a command that measures only them again, with more repeats.

Guarantee: pure. The number of repeats assumes the scatter of the blocks so far; it does not know of noisier hours.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.run_summary import NOTABLE
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.comparison.titles import varying_by_workload, work_labels
from keras_matrix.analysis.stats.blocks import blocks_needed, minimum_detectable_effect
from keras_matrix.analysis.stats.sequential import LOOKS
from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION
from keras_matrix.records.text import percentage

NO_AXES = ("set_by_matrix", DEFINITION)  # of a cell's identity, but no key of a matrix


@dataclass(frozen=True, slots=True)
class Undecided:
    """How to decide a row: `filters` select its cells in the matrix; `repeats` is about the number that shows `effect`,
    a relative difference."""

    filters: tuple[str, ...]
    repeats: int
    effect: float

    def text(self, command: str | None) -> str:
        """Return what would decide; `command` measures the run's cells again, None if there is no such command."""
        needed = f"about {self.repeats} repeats show a difference of {percentage(self.effect)}"
        if command is None:
            return f"to decide: {needed}"
        given = shlex.split(command)
        filters = [f"--filter {shlex.quote(one)}" for one in self.filters if one not in given]
        return f"to decide: {' '.join([command, *filters, '--repeats auto'])} ({needed})"


def undecided(rows: Sequence[Row]) -> dict[str, Undecided]:
    """Return how to decide each row that is not separable although it has intervals, by its key."""
    filters = _filters([row for row in rows if row.cells])
    return {
        row.key: Undecided(filters[row.key], *wanted)
        for row in rows
        if row.fastest is None and (wanted := _wanted(row)) is not None
    }


def _wanted(row: Row) -> tuple[int, float] | None:
    """Return the repeats after which the open ratios show a notable difference, or the most repeats and what they show.

    None if more repeats are not what the row lacks, or if it has all of them. Without an open ratio, the row is no
    discovery among the others: then all ratios count.
    """
    if any(one.separate or one.machines_disagree or one.estimate.low is None for one in row.ratios):
        return None
    ratios = [ratio for ratio in row.ratios if (ratio.estimate.low or 0) <= 1] or list(row.ratios)
    most = LOOKS.blocks[-1]
    if not ratios or min(ratio.estimate.count for ratio in ratios) >= most:
        return None
    scatter = max(ratio.scatter or 0.0 for ratio in ratios)
    needed = blocks_needed(scatter, NOTABLE)
    if needed is not None and needed <= most:
        return next(at for at in LOOKS.blocks if at >= needed), NOTABLE
    effect = minimum_detectable_effect(scatter, most)
    return None if effect is None else (most, effect)


def _filters(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Return, for each row's key, the filters that select its work: the workload, and each value that differs
    between the works of that workload."""
    works = {row.key: next(iter(row.cells.values())).settings for row in rows}
    labels = {key: work_labels(settings) for key, settings in works.items()}
    varying = varying_by_workload((work.workload, labels[key]) for key, work in works.items())
    filters = {}
    for key, values in labels.items():
        workload = works[key].workload
        axes = varying[workload] - set(NO_AXES)
        chosen = (f"{name}={_pattern(value)}" for name, value in values.items() if name in axes)
        filters[key] = (f"workload={workload}", *chosen)
    return filters


def _pattern(value: Scalar) -> str:
    """Return the pattern of `--filter` that matches a value as it is written in a matrix."""
    return glob.escape(str(value).lower() if isinstance(value, bool) else str(value))
