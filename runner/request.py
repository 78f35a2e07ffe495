"""What a command line asks for, as values. Only `runner.cli` knows flags; everything below it takes these.

`CellChoice` says which cells of which matrix; `RunRequest` adds how they are measured and where results go.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from keras_matrix.runner.executors.registry import Executors
from keras_matrix.runner.host.mounts import missing
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell, Matrix, expand, load
from keras_matrix.runner.matrix.service_selection import Service, chosen
from keras_matrix.runner.measure.seams import Seams
from keras_matrix.runner.plan.largest_cells import refuse

MATRIX = Path("matrix.yaml")


@dataclass(frozen=True, slots=True)
class CellChoice:
    """Which cells are meant: of which matrix file, with what changed, and of these what a service can run."""

    matrix: Path
    overrides: Overrides
    service: Service | None = None

    def load(self, *, largest: bool = False) -> tuple[Matrix, list[Cell]]:
        """Return the matrix and the chosen cells; those with `batch_size: largest` are refused without `largest`.

        Raises `InputError`.
        """
        matrix, cells = self.cells_of(load(self.matrix))
        if not largest:
            refuse(cells)
        return matrix, cells

    def cells_of(self, matrix: Matrix) -> tuple[Matrix, list[Cell]]:
        """Return the chosen cells of a matrix; its `left_out` lists what the service cannot run.

        Raises `InputError`.
        """
        if self.service is None:
            return matrix, expand(matrix, self.overrides)
        roots = [Path.cwd(), self.matrix.resolve().parent]
        cells, left_out = chosen(matrix, self.service, self.overrides, lambda cell: missing(cell, roots))
        return replace(matrix, left_out=tuple(left_out)), cells


@dataclass(frozen=True, slots=True)
class RunRequest:
    """How cells are measured and where results go.

    `command` is the command line, which `run.json` keeps; `memory_bytes` the limit of a container, None for the usual
    one; `new` starts a new run even if an unfinished one could be continued; an `order_seed` of None asks for a random
    one.
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
        """Return the budget that was asked for, or else the matrix's, in seconds."""
        return matrix.budget_s if self.budget_s is None else self.budget_s
