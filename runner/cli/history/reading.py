"""Reads the stored history of the cells that a command names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from keras_matrix.records import history_reader
from keras_matrix.records.appended import annotations as stored_notes
from keras_matrix.records.history_reader import Past, Wanted
from keras_matrix.records.store import Problem, Results
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError


def read(roots: Sequence[Path], cell: str | None) -> tuple[Past, list[Problem]]:
    """Return the stored history of the named cells. Raises `UsageError` if there is none."""
    named = ", ".join(map(str, roots))
    if not any(Results(root).runs() for root in roots):
        raise UsageError(f"--results: {named} contains no run; measure one with: runner --matrix matrix.yaml")
    names: set[str] = set()
    found = history_reader.read(roots, _choice(cell, names))
    if not any(run.attempts for run in found.runs):
        if cell is not None and names:
            message = f"CELL: no stored cell is named {cell!r}{near(cell, names)}; there are {_some(names)}"
            skipped = (f"skipped: {problem.path}: {problem.reason}" for problem in found.problems)
            raise UsageError("\n".join([message, *skipped]))
        reasons = [*(f"{problem.path}: {problem.reason}" for problem in found.problems), *found.caveats]
        kind = "readable record" if found.problems else "run for a history"
        raise UsageError(f"--results: {named} contains no {kind}{''.join(f': {reason}' for reason in reasons[:1])}")
    return found, [*found.problems, *(problem for root in roots for problem in stored_notes.load(root)[1])]


def _choice(cell: str | None, found: set[str]) -> Wanted:
    """Return the test whether a cell is named; it adds the name of every cell it is called for to `found`."""

    def wanted(cell_id: str, workload: str, backend: str) -> bool:
        names = (workload, f"{backend}:{workload}")
        found.add(names[1])
        return cell is None or names_cell(cell, cell_id, workload, backend)

    return wanted


def names_cell(pattern: str, cell_id: str, workload: str, backend: str) -> bool:
    """Return whether a pattern of the command line names this cell."""
    return cell_id.startswith(pattern) or any(
        fnmatchcase(name, pattern) for name in (workload, f"{backend}:{workload}")
    )


def _some(found: set[str], shown: int = 12) -> str:
    names = sorted(found)
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
