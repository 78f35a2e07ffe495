"""Plans the order of the repeats of all cells, and returns those that are not measured yet.

Promise: pure; the same cells and the same seed give the same order on any machine.

Block r contains repeat r of every cell, so that drift of the machine affects all cells equally; an interrupted run
has measured every cell about equally often. Within a block the comparisons (cells that differ in their backend,
implementation, call or arm only, or that a command or a key of the matrix puts together) are in random order, and so
are the cells of a comparison, which stay together: figures that are compared are measured close in time. This is the
randomised complete block design (Fisher 1935, The Design of Experiments). Every second block reverses the order of the
cells in each comparison of the block before: steady drift cancels (ABBA).

How many steps an epoch has if `steps_per_epoch` is "auto".

Estimates how long the cells of a plan take: from the newest run that measured them, or from their work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter, itemgetter
from pathlib import Path
from random import Random

from keras_matrix.records.codec import canonical
from keras_matrix.records.identity import work_values
from keras_matrix.records.schema import MEASURED, Status
from keras_matrix.records.settings import BACKWARD, Settings
from keras_matrix.runner.matrix.catalog import Catalog
from keras_matrix.runner.matrix.reader import Cell

# For estimates. A factor of three is precise enough: durations of earlier runs replace them.
START_TIME_S = 0.5
FIRST_EPOCH_EXTRA_TIME_S = 2.0
AUTO_EPOCH_TIME_S = 0.7
LEAST_STEP_TIME_S = 0.001
USER_STEP_TIME_S = 0.01
FLOPS_PER_S = 50e9
TRAINING_PER_FORWARD = 3
# Cells that differ in these only are compared: measured close in time, with the same number of steps in an epoch.
ARMS = ("backend", "implementation", "call")
_COMPARED = attrgetter(*(f.name for f in fields(Settings) if f.name not in (*ARMS, "params")))
TARGET_EPOCH_S = 0.5
# Calibrated step times scatter; without a margin half of all epochs would be shorter than the target.
TARGET_MARGIN = 1.1
# The share of a process's time limit that its epochs may fill: the start and the first step come in addition.
EPOCHS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PlannedRepeat:
    """A process to run. `arm` is the environment that the cell is measured in: "", or the name of one of two."""

    cell: Cell
    repeat: int
    arm: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return (arm, cell_id, repeat), which identifies the process."""
        return self.arm, self.cell.cell_id, self.repeat


def order(cells: Sequence[Cell], seed: int, arms: Sequence[str] = ("",)) -> list[PlannedRepeat]:
    """Return every repeat of every cell in every arm, block by block."""
    grouped = comparisons(cells)
    repeats = range(max((cell.repeats for cell in cells), default=0))
    return [planned for repeat in repeats for planned in block(grouped, repeat, seed, arms)]


def block(
    compared_cells: Sequence[Sequence[Cell]], repeat: int, seed: int, arms: Sequence[str] = ("",)
) -> list[PlannedRepeat]:
    """Return a block: its comparisons in random order, the cells of each together."""
    cell_random = Random(f"{seed}:{repeat // 2}:cells")
    groups: list[list[PlannedRepeat]] = []
    for comparison in compared_cells:
        planned_repeats = [PlannedRepeat(cell, repeat, arm) for cell in comparison for arm in arms]
        if len(planned_repeats) > 1:  # with 100,000 single cells the shuffling would take a fifth of the planning time
            cell_random.shuffle(planned_repeats)
        due = [planned for planned in planned_repeats if planned.cell.repeats > repeat]
        groups.append(due[::-1] if repeat % 2 else due)
    Random(f"{seed}:{repeat}").shuffle(groups)
    return [planned for comparison in groups for planned in comparison]


def remaining(
    repeats: Iterable[PlannedRepeat], published: Iterable[tuple[str, str, int, int, str]]
) -> list[PlannedRepeat]:
    """Return the repeats that are not measured yet, in their order.

    `published` contains (arm, cell_id, repeat, attempt, status); a repeat whose latest attempt is `infra` is pending,
    unless an earlier one measured it.
    """
    attempts = sorted(published, key=itemgetter(3))
    latest = {tuple(key): status for *key, _, status in attempts}
    done_keys = {key for key, status in latest.items() if status != Status.INFRA}
    done_keys |= {tuple(key) for *key, _, status in attempts if status in MEASURED}
    return [planned for planned in repeats if planned.key not in done_keys]


def plan_id(cells: Iterable[Cell]) -> str:
    """Return the name of the plan, which depends on the cells and repeats but not on their order and seed."""
    # Cells without a trace have the same text as before traces existed.
    traces = ((cell, f" {canonical(cell.trace)}" if cell.trace else "") for cell in cells)
    return _digest("\n".join(sorted(f"{c.cell_id} {c.precision_target or c.repeats}{trace}" for c, trace in traces)))


def calibration_group(cell: Cell) -> str:
    """Return a name for the cells that share their number of steps if it is "auto": those of one comparison."""
    settings = cell.settings
    if cell.together:
        return _digest(f"together {cell.together}")
    return _digest(canonical({name: value for name, value in work_values(settings).items() if name not in ARMS}))


def estimate_s(cell: Cell, catalog: Catalog, earlier_times_s: Mapping[str, float]) -> float:
    """Return the estimated duration of a repeat in seconds: the earlier one (by cell_id), or else a rough model.

    The estimate may exceed the cell's time limit. The model adds a start, a first epoch with compilation, and the other
    epochs. An epoch takes 0.7 s if its steps are "auto" (or one step, if that is longer), else steps x the time of a
    step at 50 GFLOP/s, at least 1 ms. For an external command the result is at most its time limit.
    """
    if cell.cell_id in earlier_times_s:
        return earlier_times_s[cell.cell_id]
    settings = cell.settings
    step_s = _step_s(settings, catalog)
    if settings.steps_per_epoch == "auto":
        epoch_s = max(AUTO_EPOCH_TIME_S, step_s)
    elif isinstance(settings.steps_per_epoch, int):
        epoch_s = settings.steps_per_epoch * step_s
    else:
        epoch_s = -(-settings.samples // max(1, settings.batch_size)) * step_s
    modelled_s = START_TIME_S + FIRST_EPOCH_EXTRA_TIME_S + settings.epochs * epoch_s
    return min(cell.timeout_s, modelled_s) if cell.task else modelled_s


def comparisons(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the groups of cells that are compared with each other: those that differ in their `ARMS` only.

    Cells with the same `together`, or of the same `race`, are one group, whatever they differ in.
    """
    cells_by_comparison: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        cells_by_comparison.setdefault(comparison_of(cell), []).append(cell)
    return list(cells_by_comparison.values())


def comparison_of(cell: Cell) -> Hashable:
    """Return a value that is equal for the cells of one comparison."""
    params = cell.settings.params.items()  # with their types: 1, 1.0 and true are equal
    own = (_COMPARED(cell.settings), *sorted((name, type(value), value) for name, value in params))
    return cell.together or cell.race or own


def _step_s(settings: Settings, catalog: Catalog) -> float:
    workload = catalog.workloads.get(settings.workload)
    if workload is None or workload.forward_flops_per_sample is None:
        return USER_STEP_TIME_S
    passes = TRAINING_PER_FORWARD if settings.phase in BACKWARD else 1
    flops = settings.batch_size * passes * workload.forward_flops_per_sample
    return max(LEAST_STEP_TIME_S, flops / FLOPS_PER_S)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def steps_for(step_times_s: Iterable[float], slowest_s: float = 0.0, limit_s: float = math.inf) -> int:
    """Return the smallest number of steps whose epoch lasts `TARGET_EPOCH_S` on every backend, at least 1. Pure.

    `step_times_s` has the shortest step of each backend. There are no more steps than fit into an epoch of `limit_s` of
    the slowest cell, whose step takes `slowest_s`: the epochs of fast backends are too short rather than none measured.
    """
    enough = max((math.ceil(TARGET_MARGIN * TARGET_EPOCH_S / seconds) for seconds in step_times_s), default=1)
    return enough if enough * slowest_s <= limit_s else max(1, math.floor(limit_s / slowest_s))


def longest_epoch_s(limits: Iterable[tuple[float, int]]) -> float:
    """Return the longest epoch for which each process has time, from its limit in seconds and its number of epochs."""
    return min((EPOCHS_SHARE * timeout_s / epochs for timeout_s, epochs in limits), default=math.inf)


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

    workload_catalog, earlier_times_s = catalog.load(), earlier_wall_times(results)
    within_s, over_s = {}, {}
    for cell in cells:
        within_s[cell.cell_id] = found_s = estimate_s(cell, workload_catalog, earlier_times_s)
        if found_s > cell.timeout_s:
            within_s[cell.cell_id], over_s[cell.cell_id] = cell.timeout_s, found_s
    return Estimates(within_s, over_s, earlier_times_s)


def earlier_wall_times(results: Path) -> dict[str, float]:
    """Return the duration of each cell's process in the newest run, in seconds."""
    from keras_matrix.records.store import Results

    newest = Results(results).latest()
    if newest is None:
        return {}
    from statistics import median

    walls_by_cell: dict[str, list[float]] = {}
    for record in newest.load()[0]:
        if record.harness.wall_time_s:
            walls_by_cell.setdefault(record.cell_id, []).append(record.harness.wall_time_s)
    return {cell_id: median(walls) for cell_id, walls in walls_by_cell.items()}
