"""A task as an entry of the matrix, whoever asked for it: a matrix file or a `.cfg`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from keras_matrix.records.settings import Scalar
from keras_matrix.records.task import DEFINITION
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import LIMITS, SETTINGS, Axes
from keras_matrix.runner.tasks.request import OWN, TaskRequest, workload_of
from keras_matrix.runner.tasks.rules import SHARED


def entry_of(
    place: tuple[str, int | None], asked: TaskRequest, params: Axes, shared: Mapping[str, Scalar | None]
) -> Entry:
    """Return the entry at `place` (what it is called, its line): its axes beside the compared one, and its limits.

    `shared` holds the settings and limits of any cell that a command obeys too.
    """
    given = {key: value for key, value in shared.items() if value is not None}
    return Entry(
        where=place[0],
        line=place[1],
        workload=workload_of(asked.task.name),
        backends=tuple(asked.labels),
        axes=_axes("gpu" if asked.task.gpus else "cpu", given),
        params=params | {DEFINITION: (asked.definition,)},
        limits={key: value for key, value in given.items() if key in LIMITS},
        task=asked,
    )


def with_gpus(entry: Entry, gpus: int | None) -> Entry:
    """Return a task's entry with another number of GPUs; as it is for None."""
    if entry.task is None or gpus is None:
        return entry
    asked = replace(entry.task, task=replace(entry.task.task, gpus=gpus))
    params = {key: values for key, values in entry.params.items() if key != DEFINITION}
    shared = {key: values[0] for key, values in entry.axes.items() if key in SHARED} | entry.limits
    return entry_of((entry.where, entry.line), asked, params, shared)


def _axes(device: str, shared: Mapping[str, Scalar]) -> Axes:
    """Return the settings of a task's cells: one step, what the command decides for itself, and what it shares."""
    usual = {key: rule.default for key, rule in SETTINGS.items()}
    usual |= {"batch_size": 1, "samples": 1, "epochs": 1, "discard": 0, "steps_per_epoch": 1, "device": device}
    usual |= {"phase": "task", "data": OWN, "precision": OWN, "feed": OWN, "league": "tasks"}
    usual |= {key: value for key, value in shared.items() if key in SETTINGS}
    return {key: (value,) for key, value in usual.items() if value is not None}
