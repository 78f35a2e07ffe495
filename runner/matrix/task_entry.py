"""Builds the matrix entry of a task from a matrix file or a `.cfg` file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, Axes
from keras_matrix.runner.matrix.task_request import OWN, TaskRequest, workload_of
from keras_matrix.runner.matrix.task_rules import SHARED


def entry_of(
    place: tuple[str, int | None], request: TaskRequest, params: Axes, shared: Mapping[str, Scalar | None]
) -> Entry:
    """Return the entry at `place` (its name and line); `shared` has the settings and limits that apply to commands."""
    given = {key: value for key, value in shared.items() if value is not None}
    return Entry(
        where=place[0],
        line=place[1],
        workload=workload_of(request.task.name),
        backends=tuple(request.labels),
        axes=_axes("gpu" if request.task.gpus else "cpu", given),
        params=params | {DEFINITION: (request.definition,)},
        limits={key: value for key, value in given.items() if key in LIMITS},
        task=request,
    )


def with_gpus(entry: Entry, gpus: int | None) -> Entry:
    """Return a task's entry with another number of GPUs, unchanged for None."""
    if entry.task is None or gpus is None:
        return entry
    request = replace(entry.task, task=replace(entry.task.task, gpus=gpus))
    params = {key: values for key, values in entry.params.items() if key != DEFINITION}
    shared = {key: values[0] for key, values in entry.axes.items() if key in SHARED} | entry.limits
    return entry_of((entry.where, entry.line), request, params, shared)


def _axes(device: str, shared: Mapping[str, Scalar]) -> Axes:
    """Return the settings of a task's cells: one step, `OWN` for the command's decisions, and the shared ones."""
    usual = {key: rule.default for key, rule in SETTINGS.items()}
    usual |= {"batch_size": 1, "samples": 1, "epochs": 1, "discard": 0, "steps_per_epoch": 1, "device": device}
    usual |= {"phase": "task", "data": OWN, "precision": OWN, "feed": OWN, "league": "tasks"}
    usual |= {key: value for key, value in shared.items() if key in SETTINGS}
    return {key: (value,) for key, value in usual.items() if value is not None}
