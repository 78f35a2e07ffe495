"""Summary of a run: geometric means, the comparisons in which a difference would have shown, and a night's projection.

The projection assumes that each comparison continues with the scatter and the cost of its blocks so far, and adds
blocks, to the cheapest comparisons first, until a difference of `NOTABLE` would show with 80 % power or no look is
left. It does not know of hours that are noisier than the measured one.

What would decide the rows that are not separable: a command that measures only them again, with more repeats.

Guarantee: pure. The number of repeats assumes the scatter of the blocks so far; it does not know of noisier hours.
"""

from __future__ import annotations

import glob
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.machines import noun
from keras_matrix.analysis.comparison.ratios import bracketed, takes
from keras_matrix.analysis.comparison.table import Row
from keras_matrix.analysis.comparison.titles import varying_by_workload, work_labels
from keras_matrix.analysis.stats.blocks import blocks_needed, minimum_detectable_effect
from keras_matrix.analysis.stats.sequential import LOOKS
from keras_matrix.analysis.stats.suite import Suite, SuiteRatio
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION
from keras_matrix.records.text import percentage

NOTABLE = 0.05  # the relative difference for which a run reports whether it would have shown
NIGHT_S = 7200.0
NO_AXES = ("set_by_matrix", DEFINITION)  # of a cell's identity, but no key of a matrix


@dataclass(frozen=True, slots=True)
class Fraction:
    """A number of comparisons of a run, out of all: each cell of a row against the one with the lowest time."""

    able: int
    of: int


def summary_lines(rows: Sequence[Row], suites: Sequence[Suite]) -> list[str]:
    """Return the summary of a run with these means as lines; empty if nothing is compared."""
    text = []
    for one in suites:
        (first, ratio), *others = one.ratios.items()
        means = [takes(first, bracketed(ratio.estimate), against=one.against) + _note(ratio)]
        means += [f"{name} {bracketed(ratio.estimate)}{_note(ratio)}" for name, ratio in others]
        text.append(f"geometric mean, league {one.league}: {', '.join(means)}")
        text[-1] += f"; left out: {one.left_out}" if one.left_out else ""
    rows = [row for row in rows if not row.values]  # separate sessions would need more sessions, not blocks
    now, drawn = detectable(rows, NOTABLE), sum(len(row.ratios) for row in rows)
    if not drawn:
        return text
    text.append(f"a difference of {percentage(NOTABLE)} would have shown in {now.able} of {now.of} comparisons")
    if drawn < now.of:
        text[-1] += f" ({now.of - drawn} not compared)"
    if (night := projected(rows, NIGHT_S)) is not None and night.able > now.able:
        text[-1] += f"; in {night.able} after --repeats auto --budget {NIGHT_S:.0f}, if their scatter remains the same"
    return text


def detectable(rows: Sequence[Row], effect: float) -> Fraction:
    """Return how many of the comparisons would have shown a relative difference of `effect`."""
    known = [ratio.smallest_difference for row in rows for ratio in row.ratios]
    return Fraction(sum(found is not None and found <= effect for found in known), _expected(rows))


def projected(rows: Sequence[Row], budget_s: float) -> Fraction | None:
    """Return how many comparisons would probably show `NOTABLE` within a budget; None if too little is known.

    Blocks are those of `repeats: auto`: up to its last look, and at its looks only.
    """
    compared = [row for row in rows if row.ratios]
    if any(ratio.scatter is None for row in compared for ratio in row.ratios) or not compared:
        return None
    imports_s: dict[str, list[float]] = {}
    for backend, cell in (found for row in compared for found in row.cells.items()):
        imports_s.setdefault(backend, []).extend(record.times.import_time_s or 0.0 for record in cell.measured)
    # The start of a block's servers: one a backend for all rows, as if started one by one.
    servers_s = sum(statistics.fmean(found) for found in imports_s.values() if found)
    spent_s, most_blocks, able = 0.0, 0, 0
    for cost_s, blocks, count in sorted(_wanted(row) for row in compared):
        longest = max(most_blocks, blocks)
        if spent_s + cost_s + longest * servers_s <= budget_s:
            spent_s, most_blocks, able = spent_s + cost_s, longest, able + count
    return Fraction(able, _expected(rows))


def _expected(rows: Sequence[Row]) -> int:
    """Return how many comparisons a run of these rows should have: failed cells and cells of other work included.

    Cells that a backend does not support are excluded.
    """
    able = [
        [cell for cell in row.cells.values() if any(r.status is not Status.UNSUPPORTED for r in cell.records)]
        for row in rows
    ]
    return sum(max(0, len(cells) - 1) for cells in able)


def _wanted(row: Row) -> tuple[float, int, int]:
    """Return seconds and blocks needed to decide a row's comparisons at its looks, and how many those decide."""
    needed = [blocks_needed(ratio.scatter or 0.0, NOTABLE) for ratio in row.ratios]
    looks = [next((at for at in LOOKS.blocks if found is not None and found <= at), None) for found in needed]
    reached = [look for look in looks if look is not None]
    blocks = max(reached, default=0)
    cells = [cell.measured for cell in row.cells.values() if cell.measured]
    block_s = sum(statistics.fmean(record.harness.wall_time_s or 0.0 for record in records) for records in cells)
    return blocks * block_s, blocks, len(reached)


def _note(ratio: SuiteRatio) -> str:
    """Return what a mean is from, if not the common blocks of one machine."""
    if ratio.separate:
        return " (separate sessions)" if ratio.estimate.bounds else " (separate sessions: no interval)"
    return f" ({len(ratio.machines)} {noun(ratio.machines)}: no interval)" if ratio.machines else ""


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
        if row.fastest is None and (wanted := _more_repeats(row)) is not None
    }


def _more_repeats(row: Row) -> tuple[int, float] | None:
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
