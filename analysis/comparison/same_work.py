"""Whether cells that are compared did the same work: what a record tells of it, compared; and losses that fall alike.

What differs in weights, optimiser, FLOPs or settings makes a comparison none. Losses are another matter: the backends
draw their initial weights from generators of their own, so that equal work does not give equal losses. They are told
apart only where two cells are further from each other, in some epoch, than `LOSS_TOLERANCE` of the loss they began
with: twice what seeds alone were seen to do (docs/parity.md). That is a doubt beside the comparison, not its end.

Whether float32 operations use TF32 is a caveat in league `as_shipped`, where each backend keeps its default, and ends
the comparison in league `matched`, which turns TF32 off (`analysis.comparison.tf32`).

Promise: pure; what was not measured is not compared. It does not see a wrong step that moves no loss in the few epochs
of a cell: `runner parity` compares gradients and updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from keras_matrix.analysis.comparison import tf32
from keras_matrix.records.schema import MEASURED, Record

LOSS_TOLERANCE = 0.25
FLOPS_TOLERANCE = 0.005
RATE_TOLERANCE = 1e-6  # schedules are computed in float32 by some backends
STEPS = "steps per epoch"
Cells = Mapping[str, Sequence[Record]]
"""The measured records of each cell that is compared, by the name it goes by."""

# What older records and some processes do not tell: compared among those that do.
TOLD: dict[str, Callable[[Record], object]] = {
    "trainable parameters": lambda record: record.resolved and record.resolved.trainable_parameters,
    "optimisers": lambda record: record.resolved and record.resolved.optimizer,
    "optimiser slots": lambda record: record.resolved and record.resolved.optimizer_slots,
    "bytes of optimiser slots": lambda record: record.resolved and record.resolved.optimizer_slot_bytes,
    "samples": lambda record: record.resolved and record.resolved.samples,
    "steps per execution": lambda record: record.resolved and record.resolved.steps_per_execution,
    "methods of the model's own": lambda record: record.work and (", ".join(record.work.own_methods) or "none"),
    "weights that training changed": lambda record: record.work and record.work.changed_variables,
    "updates per step": lambda record: record.work and record.work.updates_per_step,
}
# A setting that one cell has and another lacks differs.
FACTS: dict[str, Callable[[Record], object]] = {
    "parameters": lambda record: record.resolved and record.resolved.parameters,
    "precisions": lambda record: record.resolved and record.resolved.precision,
    "CPUs": lambda record: record.resolved and record.resolved.cpus,
    "kinds of data": lambda record: record.resolved and record.resolved.data_is_real,
    STEPS: lambda record: record.resolved and record.resolved.steps_per_epoch,
    "devices": lambda record: record.device and record.device.platform,
    "hosts": lambda record: record.machine.host_id,
}
MATCHED_FACTS: dict[str, Callable[[Record], object]] = {
    "compile modes": lambda record: record.resolved and record.resolved.jit_compile,
    "image data formats": lambda record: record.resolved and record.resolved.image_data_format,
}
# As above, within that league: JAX does not tell its threads, TensorFlow only those it was given by number.
MATCHED_TOLD: dict[str, Callable[[Record], object]] = {
    "threads of an operation": lambda record: record.resolved and record.resolved.intra_op_threads,
}
FIGURES: dict[str, tuple[Callable[[Record], Any], float]] = {
    "learning rates": (lambda record: record.resolved and record.resolved.learning_rate, RATE_TOLERANCE),
}
# Of one backend under two labels more FLOPs are no other work: they are what a comparison of the two is to find.
FIGURES_BETWEEN_BACKENDS: dict[str, tuple[Callable[[Record], Any], float]] = {
    "FLOPs per batch": (lambda record: record.resolved and record.resolved.forward_flops, FLOPS_TOLERANCE),
}


def differing(cells: Cells, apart: bool = False) -> str | None:
    """Return in what these cells differ, None where they did the same work as far as their records tell.

    `apart` says that they are of two sessions: each finds by itself how many steps make an "auto" epoch long enough.
    """
    cells = {name: records for name, records in cells.items() if records}
    everyone = [record for records in cells.values() for record in records]
    matched = bool(everyone) and all(record.settings.league == "matched" for record in everyone)
    found_anew = apart and all(record.settings.steps_per_epoch == "auto" for record in everyone)
    told_of = TOLD | MATCHED_TOLD if matched else TOLD
    for name, fact in (FACTS | told_of | (MATCHED_FACTS if matched else {})).items():
        if found_anew and name == STEPS:
            continue
        values = {
            cell: "/".join(map(_word, _values(fact, records, name in told_of))) for cell, records in cells.items()
        }
        told = {cell: text for cell, text in values.items() if text}
        if len(set(told.values())) > 1:
            return _told(name, told)
    if matched and (found := tf32.end_of_matched(cells)):
        return found
    several = len({record.settings.backend for record in everyone}) > 1
    for name, (figure, tolerance) in (FIGURES | FIGURES_BETWEEN_BACKENDS if several else FIGURES).items():
        known = {cell: value for cell, records in cells.items() for value in _values(figure, records, True)}
        if known and max(known.values()) - min(known.values()) > tolerance * max(known.values()):
            return _told(name, {cell: _word(value) for cell, value in known.items()})
    return None


def mixed(records: Sequence[Record]) -> str | None:
    """Return what differs between the records of one cell, which one label must not hide; None where they agree."""
    for name in ("keras", *sorted({record.settings.backend for record in records})):
        found = sorted({record.versions[name] for record in records if name in record.versions})
        if len(found) > 1:
            return f"{name} versions differ ({', '.join(found)})"
    hosts = {record.machine.host_id for record in records}
    return f"machines differ ({len(hosts)} hosts)" if len(hosts) > 1 else None


def work_caveats(cells: Cells) -> tuple[str, ...]:
    """Return what speaks against comparing these cells without forbidding it: a default precision, losses."""
    everyone = [record for records in cells.values() for record in records]
    matched = bool(everyone) and all(record.settings.league == "matched" for record in everyone)
    found = (None if matched else tf32.caveat(cells), losses_apart(cells))
    return tuple(line for line in found if line)


def losses_apart(cells: Cells) -> str | None:
    """Return the doubt that these cells' losses do not fall alike, None where they do or were not measured."""
    paths = {name: path for name, records in cells.items() if (path := loss_path(records))}
    for one, other in combinations(paths, 2):
        begun = min(abs(paths[one][0]), abs(paths[other][0]))
        for epoch, (a, b) in enumerate(zip(paths[one], paths[other], strict=False), start=1):
            if begun and abs(a - b) > LOSS_TOLERANCE * begun:
                return (
                    f"losses do not fall alike: in epoch {epoch} {one} is at {a:.3g} and {other} at {b:.3g}, further "
                    f"apart than {LOSS_TOLERANCE:.0%} of where they began ({paths[one][0]:.3g} and "
                    f"{paths[other][0]:.3g}): "
                    "check optimiser and initial weights; runner parity tells where two backends part"
                ).replace("%", " %")
    return None


def loss_path(records: Sequence[Record]) -> list[float]:
    """Return a cell's loss in each epoch, the median over its processes.

    A process that found the number of steps had trained before its first epoch: it counts only where there is no other.
    """
    measured = [record for record in records if record.status in MEASURED]
    fresh = [record for record in measured if record.times.calibration_time_s is None]
    losses = [record.learning.loss for record in fresh or measured if record.learning.loss]
    epochs = zip(*losses, strict=False)
    return [statistics.median(known) for epoch in epochs if (known := [loss for loss in epoch if loss is not None])]


def _values(fact: Callable[[Record], object], records: Sequence[Record], known: bool) -> list[Any]:
    """Return the distinct values of a fact, only the known ones where that is asked."""
    return sorted({value for record in records if (value := fact(record)) is not None or not known}, key=str)


def _told(name: str, values: Mapping[str, str]) -> str:
    return f"{name} differ: " + ", ".join(f"{cell} {value}" for cell, value in sorted(values.items()))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
