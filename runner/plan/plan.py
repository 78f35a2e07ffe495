"""The plan: which repeat of which cell runs when, and which of them are still to do.

Promise: pure; the same cells and the same seed give the same order on any machine.

Block r holds repeat r of every cell that has one, so that drift of the machine falls on all cells alike, and a run cut
short has measured everything about equally often. Within a block the comparisons (cells that differ in their backend
or arm only) come in random order and each comparison's cells in random order, together: the figures that are compared
are close in time. This is the randomised complete block design (Fisher 1935, The Design of Experiments). Every second
block has its comparisons' cells in the reverse order of the block before: what drifts steadily favours none (ABBA).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from random import Random

from keras_matrix.records.codec import canonical
from keras_matrix.records.schema import Status
from keras_matrix.records.settings import Settings
from keras_matrix.runner.matrix.catalog import Catalog
from keras_matrix.runner.matrix.reader import Cell

# Of the estimate. They need only be right within a factor of three: they are replaced by what earlier runs took.
START_TIME_S = 0.5
FIRST_EPOCH_EXTRA_TIME_S = 2.0
AUTO_EPOCH_TIME_S = 0.7
LEAST_STEP_TIME_S = 0.001
USER_STEP_TIME_S = 0.01
FLOPS_PER_S = 50e9
TRAINING_PER_FORWARD = 3

_COMPARED = attrgetter(*(f.name for f in fields(Settings) if f.name not in ("backend", "params")))


@dataclass(frozen=True, slots=True)
class PlannedRepeat:
    """One process to run. `arm` names what is compared beside the cells: "" or, of two environments, which one."""

    cell: Cell
    repeat: int
    arm: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return (arm, cell_id, repeat): which process this is."""
        return self.arm, self.cell.cell_id, self.repeat


def order(cells: Sequence[Cell], seed: int, arms: Sequence[str] = ("",)) -> list[PlannedRepeat]:
    """Return every repeat of every cell in every arm, block after block."""
    grouped = comparisons(cells)
    repeats = range(max((cell.repeats for cell in cells), default=0))
    return [planned for repeat in repeats for planned in block(grouped, repeat, seed, arms)]


def block(
    grouped: Sequence[Sequence[Cell]], repeat: int, seed: int, arms: Sequence[str] = ("",)
) -> list[PlannedRepeat]:
    """Return one block: its comparisons in random order, each one's cells together."""
    in_pair = Random(f"{seed}:{repeat // 2}:cells")
    found: list[list[PlannedRepeat]] = []
    for comparison in grouped:
        together = [PlannedRepeat(cell, repeat, arm) for cell in comparison for arm in arms]
        if len(together) > 1:  # of 100,000 lone cells the shuffling alone would take a fifth of the plan
            in_pair.shuffle(together)
        there = [planned for planned in together if planned.cell.repeats > repeat]
        found.append(there[::-1] if repeat % 2 else there)
    Random(f"{seed}:{repeat}").shuffle(found)
    return [planned for comparison in found for planned in comparison]


def remaining(
    repeats: Iterable[PlannedRepeat], published: Iterable[tuple[str, str, int, int, str]]
) -> list[PlannedRepeat]:
    """Return the steps still to do, in their order.

    `published` holds (arm, cell_id, repeat, attempt, status); a repeat whose latest attempt is `infra` is still to do.
    """
    latest: dict[tuple[str, str, int], tuple[int, str]] = {}
    for arm, cell_id, repeat, attempt, status in published:
        if latest.get((arm, cell_id, repeat), (-1, ""))[0] < attempt:
            latest[arm, cell_id, repeat] = attempt, status
    done = {key for key, (_, status) in latest.items() if status != Status.INFRA}
    return [planned for planned in repeats if planned.key not in done]


def plan_id(cells: Iterable[Cell]) -> str:
    """Return the name of the plan: the same for the same cells and repeats, whatever their order and seed."""
    return _digest("\n".join(sorted(map(_planned, cells))))


def _planned(cell: Cell) -> str:
    """Return what a plan says of a cell; where nothing is traced, as it was said before there were traces."""
    traced = f" {canonical(cell.trace)}" if cell.trace else ""
    return f"{cell.cell_id} {cell.precision_target or cell.repeats}{traced}"


def calibration_group(settings: Settings) -> str:
    """Return the name of the cells that must share their number of steps when it is "auto": all but the backend."""
    return _digest(canonical({f.name: getattr(settings, f.name) for f in fields(Settings) if f.name != "backend"}))


def estimate_s(cell: Cell, catalog: Catalog, earlier: Mapping[str, float]) -> float:
    """Return about how long one repeat takes, in seconds: what it took earlier (by cell_id), else a rough model.

    It may be longer than the cell's time limit. The model: a start, a first epoch with its compilation, then the other
    epochs. An epoch is 0.7 s when its steps are "auto" (or one step, if that is longer), else steps x the time of a
    step at 50 GFLOP/s, at least 1 ms. Of an external command it knows nothing, and never exceeds its time limit.
    """
    if cell.cell_id in earlier:
        return earlier[cell.cell_id]
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
    """Return the cells that are compared with each other: those that differ in their backend only."""
    found: dict[object, list[Cell]] = {}
    for cell in cells:
        key = (_COMPARED(cell.settings), *sorted(cell.settings.params.items()))
        found.setdefault(key, []).append(cell)
    return list(found.values())


def _step_s(settings: Settings, catalog: Catalog) -> float:
    workload = catalog.workloads.get(settings.workload)
    if workload is None or workload.forward_flops_per_sample is None:
        return USER_STEP_TIME_S
    passes = TRAINING_PER_FORWARD if settings.phase == "fit" else 1
    flops = settings.batch_size * passes * workload.forward_flops_per_sample
    return max(LEAST_STEP_TIME_S, flops / FLOPS_PER_S)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
