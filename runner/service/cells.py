"""Finds the cells that a command names, in the matrix or else in the stored runs.

A cell is named by the beginning of its id, by its workload, or as in jax:mnist_mlp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from keras_matrix.analysis.comparison.context import UnreadFile
from keras_matrix.records.host.inherited_environment import variables_problem
from keras_matrix.records.identity import cell_id
from keras_matrix.records.schema import Record
from keras_matrix.records.settings import Settings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.task import PREFIX
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import LIMITS
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import settings_text
from keras_matrix.runner.measure.request import RunRequest
from keras_matrix.runner.plan.largest_batch import refuse
from keras_matrix.runner.service.histories import without_run
from keras_matrix.runner.service.stored import unread_file, unread_lines

HELP = "a cell id or its beginning, or a workload, as in mnist_mlp or jax:mnist_mlp"
LIMIT_FACTOR = 3.0  # of the longest process of a stored cell: its time limit, if that is above the default


def matching(text: str, settings_by_cell: Mapping[str, Settings]) -> list[str]:
    """Return the ids of the cells that a text names; `settings_by_cell` are the settings by id."""
    return sorted(
        cell_id
        for cell_id, settings in settings_by_cell.items()
        if cell_id.startswith(text) or text in _names(settings)
    )


def one_of(text: str, settings_by_cell: Mapping[str, Settings], place_text: str) -> str:
    """Return the id of the cell that a text names. Raises `UsageError` if there is no such cell or more than one."""
    cell_ids = matching(text, settings_by_cell)
    if not cell_ids:
        refuse_cell(text, settings_by_cell, place_text)
    if len(cell_ids) > 1:
        ask(text, cell_ids, settings_by_cell)
    return cell_ids[0]


def ask(text: str, cell_ids: Sequence[str], settings_by_cell: Mapping[str, Settings]) -> None:
    """Raise `UsageError` for a text that names several cells."""
    lines = [
        f"  {cell_id}  {settings_by_cell[cell_id].backend:<10}  {settings_text(settings_by_cell[cell_id])}"
        for cell_id in cell_ids
    ]
    raise UsageError("\n".join([f"CELL: {text!r} names {len(cell_ids)} cells; name one by its id:", *lines]))


def refuse_cell(
    text: str, settings_by_cell: Mapping[str, Settings], place_text: str, unread: Sequence[str] = ()
) -> NoReturn:
    """Raise `UsageError` for a text that names no cell; `unread` are lines about files that may have it."""
    names = sorted({f"{settings.backend}:{settings.workload}" for settings in settings_by_cell.values()})
    known_names = {name for settings in settings_by_cell.values() for name in _names(settings)}
    message = (
        f"CELL: no cell of {place_text} is named {text!r}; there {'are' if len(names) > 1 else 'is'} "
        f"{', '.join(names)}{near(text, sorted(known_names))}"
    )
    raise UsageError("\n".join([message, *unread]))


def _names(settings: Settings) -> set[str]:
    workload_names = {settings.workload, settings.workload.removeprefix(PREFIX)}
    return workload_names | {f"{settings.backend}:{name}" for name in workload_names}


def chosen_cell(request: RunRequest, name: str, unlike_tasks: str) -> Cell:
    """Return the one cell of this name, of the matrix or else of a stored run.

    Raises `UsageError`, for an external command with `unlike_tasks`: why it cannot be one.
    """
    cell_by_id = named_cells(request, name)
    matrix = request.choice.matrix
    if not cell_by_id:
        raise UsageError(f"CELL: there is no {matrix} and {without_run([request.results], 'name a --matrix')}")
    settings = {cell_id: cell.settings for cell_id, cell in cell_by_id.items()}
    cell = cell_by_id[one_of(name, settings, searched(matrix))]
    if cell.task is not None:
        raise UsageError(f"CELL: {name!r} is an external command{unlike_tasks}")
    refuse([cell])
    return cell


def refuse_programs(cells: Iterable[Cell], reason: str) -> None:
    """Refuse a cell of a program for a command that looks into a model. Raises `UsageError`."""
    for cell in cells:
        if cell.settings.script:
            raise UsageError(f"CELL: {cell.settings.workload} is a program, {reason}")


def named_cells(request: RunRequest, name: str) -> dict[str, Cell]:
    """Return the cells of the matrix or, if it has no such cell, of the stored runs, the newest first, by id."""
    cell_by_id = (
        {cell.cell_id: cell for cell in request.choice.load(largest=True)[1]} if request.choice.has_matrix else {}
    )
    if matching(name, {key: cell.settings for key, cell in cell_by_id.items()}):
        return cell_by_id
    service = request.choice.service
    for run in reversed(Results(request.results).runs()):
        records = [record for record in run.load()[0] if not record.settings.workload.startswith(PREFIX)]
        records_by_cell: dict[str, list[Record]] = {}
        for record in records:
            if not service or service.runs(record.settings):
                records_by_cell.setdefault(cell_id(record.settings), []).append(record)
        cell_by_id |= {
            key: stored_cell(cell_records) for key, cell_records in records_by_cell.items() if key not in cell_by_id
        }
        if matching(name, {key: cell_records[0].settings for key, cell_records in records_by_cell.items()}):
            return cell_by_id
    return cell_by_id


def searched(matrix: Path) -> str:
    """Return where cells have been looked for."""
    return f"{matrix} or a stored run" if matrix.is_file() else f"a stored run (there is no {matrix} here)"


def stored_limit_s(records: Sequence[Record]) -> float:
    """Return the time limit of a cell of a stored run, which does not say what it was: far above what it took."""
    usual_s, most_s = float(LIMITS["timeout_s"].default or 0), float(LIMITS["timeout_s"].maximum or 0)
    taken_s = max((record.harness.wall_time_s or 0.0 for record in records), default=0.0)
    return min(most_s, max(usual_s, LIMIT_FACTOR * taken_s))


def stored_cell(records: Sequence[Record], repeats: int = 1) -> Cell:
    """Return the cell of these records, to be measured again in this number of processes.

    Raises `UsageError` for a record, perhaps of somebody else, whose variables no matrix may set.
    """
    settings = records[0].settings
    if problem := variables_problem(settings.env):
        raise UsageError(f"record of {cell_id(settings)}: env: must be variables that a matrix may set, got {problem}")
    return Cell(settings, cell_id(settings), repeats, stored_limit_s(records), None)


def run_with_cell(runs: Sequence[Run], name: str) -> tuple[Run, list[UnreadFile]]:
    """Return the first of these runs that has the named cell, and the files of those before it that cannot be read.

    Raises `UsageError`.
    """
    seen_settings: dict[str, Settings] = {}
    unread: list[UnreadFile] = []
    for run in runs:
        records, problems = run.load()
        settings = {record.cell_id: record.settings for record in records}
        if matching(name, settings):
            return run, unread
        seen_settings = settings | seen_settings
        unread += [unread_file(run.folder.parent, problem) for problem in problems]
    place_text = f"run {runs[0].run_id}" if len(runs) == 1 else f"the {len(runs)} runs of {runs[0].folder.parent}"
    return refuse_cell(name, seen_settings, place_text, unread_lines(unread))
