"""A first look: one workload, one process on each backend, and ratios without a verdict.

It is measured as any matrix is: the same plan, session, processes, proofs and records. What it leaves out is repeats.
So it never says which backend is fastest, and names the command that decides that. A block that others disturb is not
measured again, since that would take as long once more; the warning stays. For both reasons histories and merged tables
leave such a run out.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_matrix.records.history_reader import QUICK
from keras_matrix.records.settings import Scalar
from keras_matrix.records.store import DEFAULT_RESULTS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.measure.experiment import Display, Experiment
from keras_matrix.runner.measure.experiment import measured as measured_session
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.plan import estimates
from keras_matrix.runner.plan.session import Session
from keras_matrix.runner.service.commands import DECIDED_BY

NAME = "runner quick"
WORKLOAD = "cifar10_cnn"
DEFAULTS: Mapping[str, Scalar] = {"epochs": 2, "discard": 1, "repeats": 1, "timeout_s": 120.0}
DECIDING_REPEATS = 5
# What a plan does not count, since the blocks of many cells share it: a backend's import, before anything is timed.
IMPORT_TIME_S = 5.0


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """How long a quick look takes: about `seconds`, and `limit_s` at most, after which its processes are ended.

    With `least` it takes longer than `seconds`: the time to build and compile the model is not known.
    """

    seconds: float
    limit_s: float
    least: bool


def expected(results: Path, cells: Sequence[Cell]) -> ExpectedDuration:
    """Return how long these cells take: by the newest run if it measured them, else by their work."""
    estimated = estimates(results, cells)
    times_s = estimated.within_limit_s.values()
    is_unknown = any(":" in cell.settings.workload and cell.cell_id not in estimated.earlier for cell in cells)
    imports_s = IMPORT_TIME_S * len(cells)
    return ExpectedDuration(sum(times_s) + imports_s, sum(cell.timeout_s for cell in cells) + imports_s, is_unknown)


def deciding(workload: str, assignments: Sequence[str], backends: Sequence[str], results: Path) -> str:
    """Return the command that decides what a quick look at this workload does not."""
    words = ["runner", "--workload", workload]
    words += [word for text in assignments for word in ("--set", text)]
    words += [word for name in backends for word in ("--backend", name)]
    return shlex.join([*words, *(["--results", str(results)] if results != DEFAULT_RESULTS else [])])


def measured(request: RunRequest, cells: Sequence[Cell], decided_by: str, display: Display) -> Session:
    """Measure each cell once and return the finished session, which no command continues."""
    about = request.choice.about() | {"matrix_path": NAME, DECIDED_BY: decided_by}
    return measured_session(replace(request, new=True, again=False), Experiment(cells, about, stopping=QUICK), display)
