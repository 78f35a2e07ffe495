"""The request of a command line, as values. Only `runner.cli` knows flags; the layers below take these.

`CellChoice` has the matrix and the choice of cells; `RunRequest` adds how they are measured and where results go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.records import left_out
from keras_matrix.records.codec import to_json
from keras_matrix.records.left_out import LeftOut
from keras_matrix.runner.executors.registry import Executors
from keras_matrix.runner.host.mounts import import_roots, missing
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, Matrix, expand, load, parse, text_of
from keras_matrix.runner.matrix.service_selection import Service, chosen
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.largest_cells import refuse

MATRIX = Path("matrix.yaml")


@dataclass(frozen=True, slots=True)
class CellChoice:
    """The matrix file, what is changed in it, and the service that limits the cells.

    With `text` that is the matrix, and `matrix` is only the name for it in messages.
    """

    matrix: Path
    overrides: Overrides
    service: Service | None = None
    text: str | None = None

    def load(self, *, largest: bool = False) -> tuple[Matrix, list[Cell]]:
        """Return the matrix and the chosen cells; those with `batch_size: largest` are refused without `largest`.

        Raises `InputError`.
        """
        read = (
            load(self.matrix) if self.text is None else parse(self.matrix, self.text.encode(errors="backslashreplace"))
        )
        matrix, cells = self.cells_of(read)
        if not largest:
            refuse(cells)
        return matrix, cells

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
        roots = import_roots(self.matrix.resolve().parent)
        cells, not_run = chosen(matrix, self.service, self.overrides, lambda cell: missing(cell, roots))
        return replace(matrix, left_out=tuple(not_run)), cells


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How cells are measured and where results go.

    `command` is the command line, stored in `run.json`; `memory_bytes` is the limit of a container, None for the
    default; `new` starts a new run even if an unfinished one could be continued; an `order_seed` of None means random.
    """

    command: tuple[str, ...]
    choice: CellChoice
    results: Path
    executors: Executors
    memory_bytes: int | None = None
    budget_s: float | None = None
    order_seed: int | None = None
    new: bool = False
    log_dir: Path | None = None
    datasets: Path | None = None
    in_service: bool = False
    seams: Seams = field(default_factory=Seams)

    def budget_of(self, matrix: Matrix) -> float | None:
        """Return the requested budget, else that of the matrix, in seconds."""
        return matrix.budget_s if self.budget_s is None else self.budget_s
