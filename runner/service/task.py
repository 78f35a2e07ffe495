"""Measures one external command, of a matrix file or a .cfg file, and writes its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from keras_matrix.records.store import latest_attempts
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.executors.tasks import result_file
from keras_matrix.runner.executors.tasks.result_file import Labels
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.cfg import Filled, flags_without_place, read_cfg, unused_keys
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.reader import Matrix, load
from keras_matrix.runner.matrix.task_reader import entry_of, with_gpus
from keras_matrix.runner.matrix.task_rules import TaskRequest, labelled
from keras_matrix.runner.measure.experiment import Display, Experiment, measured
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.service.run import Finished, finished


def matrix_of_cfg(path: Path, name: str | None, filled: Filled, warn: Callable[[str], None]) -> Matrix:
    """Return the matrix of a section of a .cfg file; warn of keys and flags that have no effect."""
    task = read_cfg(path, name, filled)
    written_task = read_cfg(path, name, Filled(policy=filled.policy, command=filled.command))
    for note in unused_keys(path, name, filled):
        warn(note)
    for flag in flags_without_place(written_task.command[0], filled):
        warn(f"{flag}: the command has no such field, and runs unchanged")
    limits = {key: rule.default for key, rule in LIMITS.items()} | {"timeout_s": LIMITS["timeout_s"].maximum}
    entry = entry_of((f"[{task.name}]", None), TaskRequest(task, None, labelled(None, ())), {}, limits)
    return Matrix(str(path), (entry,), catalog.load())


def matrix_of_task(path: Path, task_name: str | None, gpus: int | None) -> Matrix:
    """Return the matrix of the named task of a matrix file, by default of its only one. Raises `UsageError`."""
    matrix = load(path)
    entries = {entry.task.task.name: entry for entry in matrix.entries if entry.task}
    name = task_name or (next(iter(entries)) if len(entries) == 1 else None)
    if name is None or name not in entries:
        names_text = ", ".join(entries) or "none; write some under tasks:"
        raise UsageError(
            f"--task-name: must be a task of {matrix.name} ({names_text}), got {name}{near(str(name), entries)}"
        )
    return replace(matrix, entries=(with_gpus(entries[name], gpus),))


def measured_task(
    request: RunRequest, matrix: Matrix, labels: Labels, output: Path, display: Display
) -> tuple[Finished, bool]:
    """Measure the only task of a matrix and write its figures; return whether there are any."""
    matrix, cells = request.choice.cells_of(matrix)
    output.unlink(missing_ok=True)  # the file of an earlier run is not the result of this one
    about = request.choice.about(matrix.left_out)
    session = measured(request, Experiment(cells, about, budget_s=request.budget_of(matrix)), display)
    figures = result_file.document(latest_attempts(session.records("")), labels)
    if figures:  # before anything else, which ends early if the reader of the output closes the pipe
        output.write_text(result_file.text(figures), encoding="utf-8")
    return finished(session), bool(figures)
