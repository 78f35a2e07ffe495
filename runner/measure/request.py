"""The request of a command line, as values. Only `runner.cli` knows flags; the layers below take these.

`CellChoice` has the matrix and the choice of cells; `RunRequest` adds how they are measured and where results go.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keras_matrix.records import left_out
from keras_matrix.records.backends import BACKENDS
from keras_matrix.records.codec import to_json
from keras_matrix.records.left_out import LeftOut
from keras_matrix.records.settings import Scalar
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError, made_from_values
from keras_matrix.runner.machine.mounts import import_roots, missing
from keras_matrix.runner.machine.workload_names import check_workloads, missing_function
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.entries import workload_named
from keras_matrix.runner.matrix.grammar import DEFAULTS
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, Matrix, expand, load, parse, text_of
from keras_matrix.runner.matrix.service_selection import Service, chosen
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.largest_batch import refuse

if TYPE_CHECKING:
    from keras_matrix.runner.executors.registry import Executors


OF_ONE_WORKLOAD = Path("runner --workload")  # the name of a matrix that is made from flags
OF_ONE_PROGRAM = "runner script"
PROJECT_FILES = (".git", "pyproject.toml", "setup.py", "requirements.txt")  # one of them is in a project's folder


@dataclass(frozen=True, slots=True)
class CellChoice:
    """The matrix file, what is changed in it, and the service that limits the cells.

    With `text` that is the matrix, and `matrix` is only the name for it in messages. `optional` is a matrix that nobody
    has named: without the file, cells are looked for in stored runs alone. The matrix is read once, when its cells are
    first loaded; `parsed` then has it.
    """

    matrix: Path
    overrides: Overrides
    service: Service | None = None
    text: str | None = None
    optional: bool = False
    parsed: list[Matrix] = field(default_factory=list, repr=False, compare=False)

    @property
    def has_matrix(self) -> bool:
        """Whether there is a matrix to look into; one that was named must be there."""
        return not self.optional or self.matrix.is_file()

    def load(self, *, largest: bool = False) -> tuple[Matrix, list[Cell]]:
        """Return the matrix and the chosen cells; those with `batch_size: largest` are refused without `largest`.

        Raises `InputError`.
        """
        with made_from_values() if self.matrix == OF_ONE_WORKLOAD else nullcontext():
            matrix, cells = self.cells_of(self._read())
        if not largest:
            refuse(cells)
        return matrix, cells

    def check_workloads(self, matrix: Matrix, cells: Sequence[Cell]) -> None:
        """Refuse workloads whose module, in the user's folders, lacks their function. Raises `InputError`."""
        module_roots = import_roots(self.matrix.resolve().parent)
        if self.matrix != OF_ONE_WORKLOAD:
            check_workloads(matrix, cells, module_roots)
            return
        for workload in {cell.settings.workload for cell in cells if ":" in cell.settings.workload}:
            if problem := missing_function(workload, module_roots):
                raise UsageError(f"the workload {problem}")

    def _read(self) -> Matrix:
        if not self.parsed:
            text = self.text
            matrix = load(self.matrix) if text is None else parse(self.matrix, text.encode(errors="backslashreplace"))
            self.parsed.append(matrix)
        return self.parsed[0]

    def environments(self) -> dict[str, Path]:
        """Return the Python environments that the matrix names for its cells, by backend, "" for the others.

        {} if no cells of a matrix have been loaded: cells that flags or a stored run describe have none.
        """
        folder = self.matrix.resolve().parent
        names = self.parsed[0].environments if self.parsed else {}
        return {name: folder / Path(path).expanduser() for name, path in names.items()}

    def about(self, not_run: Sequence[LeftOut] = ()) -> dict[str, Any]:
        """Return the values of the matrix for `run.json`, with the cells that a service leaves out."""
        text = text_of(self.matrix) if self.text is None else self.text
        return {"matrix_path": str(self.matrix), "matrix_text": text, left_out.KEY: to_json(not_run)}

    def cells_of(self, matrix: Matrix) -> tuple[Matrix, list[Cell]]:
        """Return the chosen cells of a matrix; its `left_out` lists what the service cannot run.

        Raises `InputError`.
        """
        if self.service is None:
            return matrix, expand(matrix, self.overrides)
        module_roots = import_roots(self.matrix.resolve().parent)
        cells, not_run = chosen(matrix, self.service, self.overrides, lambda cell: missing(cell, module_roots))
        return replace(matrix, left_out=tuple(not_run)), cells


def one_workload(
    name: str, backends: Sequence[str], overrides: Overrides, defaults: Mapping[str, Scalar] = MappingProxyType({})
) -> CellChoice:
    """Return the choice of one workload's cells on these backends, without a matrix file.

    `defaults` are those of its matrix. Of a user's own workload, what `overrides` assign and is no setting are
    arguments of its function. Raises `UsageError` for a name that no workload has.
    """
    problem = workload_named(name, catalog.load())
    if isinstance(problem, str):
        raise UsageError(problem)
    arguments = {key: value for key, value in overrides.assignments.items() if problem.is_users and key not in DEFAULTS}
    cell = {"workload": name} | ({"params": arguments} if arguments else {})
    matrix = {"version": 1, "defaults": dict(defaults), "backends": list(backends), "cells": [cell]}
    return CellChoice(OF_ONE_WORKLOAD, overrides, text=json.dumps(matrix, indent=1))


def one_program(
    path: Path, program: Mapping[str, object], backends: Sequence[str], overrides: Overrides, repeats: int
) -> CellChoice:
    """Return the choice of one program's cells on these backends, without a matrix file.

    `program` has its arguments and its call as a matrix has them. Raises `UsageError` if it is not a file, or has no
    folder of a project.
    """
    if not path.is_file():
        missing_text = "it is a folder" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: must be a program of Python, such as train.py; {missing_text}")
    file = path.resolve()
    project = project_of(file)
    workload = {"script": str(file.relative_to(project)), **program}
    defaults = {"repeats": repeats}
    matrix = {"version": 1, "defaults": defaults, "backends": list(backends), "cells": [{"workload": workload}]}
    return CellChoice(project / OF_ONE_PROGRAM, overrides, text=json.dumps(matrix, indent=1))


def project_of(program: Path) -> Path:
    """Return the folder of a program's project: the nearest with one of `PROJECT_FILES`, else the program's own.

    It is never the home folder nor `/`. Raises `UsageError` for a program that is in one of these.
    """
    barred = (Path.home().resolve(), Path("/"))
    folders = list(itertools.takewhile(lambda folder: folder not in barred, program.parents))
    if not folders:
        text = "must be in a folder of its own, of which each cell has a copy, got one in"
        raise UsageError(f"{program}: {text} {program.parent}")
    return next((folder for folder in folders if any((folder / name).exists() for name in PROJECT_FILES)), folders[0])


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How cells are measured and where results go.

    `command` is the command line, stored in `run.json`; `memory_bytes` is the limit of a container, None for the
    default; `new` starts a new run even if an unfinished one could be continued; an `order_seed` of None means random.
    With `again` a block that other programs disturbed is measured again, once. `environments`, by backend, "" for the
    others, replace those of the matrix.
    """

    command: tuple[str, ...]
    choice: CellChoice
    results: Path
    executors: Executors
    memory_bytes: int | None = None
    budget_s: float | None = None
    order_seed: int | None = None
    new: bool = False
    again: bool = True
    log_dir: Path | None = None
    datasets: Path | None = None
    seams: Seams = field(default_factory=Seams)
    environments: Mapping[str, Path] = field(default_factory=dict)

    def budget_of(self, matrix: Matrix) -> float | None:
        """Return the requested budget, else that of the matrix, in seconds."""
        return matrix.budget_s if self.budget_s is None else self.budget_s


def check_backends(names: Sequence[str], allowed: tuple[str, ...] = BACKENDS) -> None:
    """Refuse a name that is not one of these backends. Raises `UsageError`."""
    for name in names:
        if name not in allowed:
            raise UsageError(f"--backend: must be one of {', '.join(allowed)}, got {name!r}{near(name, allowed)}")


def check_range(flag: str, value: float, least: int, most: int | None = None) -> None:
    """Refuse a number outside its range. Raises `UsageError`."""
    if value < least or (most is not None and value > most):
        rule_text = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{flag}: must be {rule_text}, got {value}")
