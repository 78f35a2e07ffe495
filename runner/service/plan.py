"""A plan as values: its cells, their order and times, and the cells that will not be measured, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keras_matrix.records import replicas as replica_rules
from keras_matrix.records.codec import to_json
from keras_matrix.runner.matrix.grammar import LARGEST
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.plan.plan import Estimates, PlannedRepeat

if TYPE_CHECKING:
    from keras_matrix.runner.executors.preflight import Preflight


def refused_cells(cells: Sequence[Cell], preflight: Preflight | None = None) -> dict[str, str]:
    """Return by cell_id why a cell will not be measured: its backend does not offer the settings, or its GPUs do not.

    The environment of the cells is not known to a plan, so the backends' builds are not checked. `preflight` replaces
    that of this machine.
    """
    not_offered = {
        cell.cell_id: reason
        for cell in cells
        if cell.task is None and (reason := replica_rules.backend_problem(cell.settings)) is not None
    }
    on_gpu = [cell for cell in cells if cell.settings.device == "gpu" and cell.cell_id not in not_offered]
    if not on_gpu:
        return not_offered
    from keras_matrix.runner.executors.preflight import preflight_of  # slow; only cells on a GPU need it

    used_preflight = preflight or preflight_of([cell.settings for cell in on_gpu], in_containers=True)
    assert used_preflight is not None, "there are cells on a GPU"
    checked = replace(used_preflight, versions={})
    refusing = {}
    for cell in on_gpu:
        problems = checked.problems(cell.settings, cell.task, cell.placement.gpus)
        refusing[cell.cell_id] = [problem.message for problem in problems if problem.status is not None]
    return not_offered | {cell_id: messages[0] for cell_id, messages in refusing.items() if messages}


def refused_lines(reason_by_cell: Mapping[str, str]) -> list[str]:
    """Return, for each reason, how many cells will not be measured."""
    return [
        f"{count} cell{'s' if count > 1 else ''} will not be measured: {reason}"
        for reason, count in Counter(reason_by_cell.values()).items()
    ]


def plan_document(name: str, repeats: Sequence[PlannedRepeat], estimated: Estimates) -> dict[str, Any]:
    """Return the cells of a plan and their order as JSON values."""
    cells = {planned.cell.cell_id: planned.cell for planned in repeats}
    return {
        "plan_id": name,
        "estimated_s": estimated.total_s(repeats),
        "cells": [
            {
                "cell_id": c.cell_id,
                "repeats": c.repeats,
                "timeout_s": c.timeout_s,
                "estimated_s": estimated.within_limit_s[c.cell_id],
                "estimated_without_limit_s": estimated.without_limit_s(c.cell_id),
                "settings": to_json(c.settings) | ({"batch_size": LARGEST} if c.uses_largest_batch else {}),
            }
            for c in cells.values()
        ],
        "order": [{"cell_id": planned.cell.cell_id, "repeat": planned.repeat} for planned in repeats],
    }
