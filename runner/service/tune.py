"""Finds the fastest setting of a model within a budget: `runner tune`.

The candidates are the product of axes, or the cells of a matrix. They are measured as any cells are, interleaved in
blocks of one session; `plan.race` drops those that are slower. The answer is `analysis.views.tune_view`, computed from
the records of the run and from what it stores of its race.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keras_matrix.analysis.comparison.titles import varying_keys
from keras_matrix.analysis.racing import RaceRule
from keras_matrix.analysis.tuning import Aim, Candidates, Objective
from keras_matrix.analysis.views.tune_view import CandidateUse, RaceOutcome, TuneView, tune_view
from keras_matrix.records import files
from keras_matrix.records.codec import canonical, to_json
from keras_matrix.records.identity import assignment, named
from keras_matrix.records.schema import MEASURED
from keras_matrix.records.settings import Scalar, Settings, is_users
from keras_matrix.records.store import Results
from keras_matrix.records.text import duration
from keras_matrix.runner.errors import InfrastructureError, InputError, MatrixError, UsageError
from keras_matrix.runner.matrix import catalog
from keras_matrix.runner.matrix.entries import workload_named
from keras_matrix.runner.matrix.grammar import DEFAULTS, SETTINGS, USER_PARAM
from keras_matrix.runner.matrix.overrides import Overrides
from keras_matrix.runner.matrix.reader import Cell
from keras_matrix.runner.matrix.settings_text import differing
from keras_matrix.runner.measure.experiment import Display, Experiment, measured
from keras_matrix.runner.measure.request import OF_ONE_PROGRAM, OF_ONE_WORKLOAD, CellChoice, RunRequest, project_of
from keras_matrix.runner.plan.plan import estimates
from keras_matrix.runner.plan.race import race_progress
from keras_matrix.runner.plan.stopping import RACE
from keras_matrix.runner.service.run import with_found_values
from keras_matrix.runner.service.stored import write_report
from keras_matrix.runner.whatif.strategy_file import ChosenCell, entry_of, written

NAME = "runner tune"
BUDGET_S = 1800.0
MOST_CANDIDATES = 1000
OPEN = 0.03  # a precision makes the number of repeats open; a race does not use its value
# An earlier figure above this multiple of the lowest one puts a candidate behind those that were never measured.
SURELY_SLOWER = 1.5
LOOKED_BACK = 20  # runs in which earlier figures are looked for
# How long is measured, what work is done, and with which samples: equal for all candidates.
NO_AXES = ("epochs", "discard", "steps_per_epoch", "phase", "data", "samples", "seed", "league", "device", "workload")
# The values of an axis that is named without any, if they are not the choices of its setting.
USUAL_VALUES: Mapping[str, tuple[Scalar, ...]] = {"jit": (True, False), "eager": (False, True)}


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting or parameter with the values that are tried."""

    key: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Entrants:
    """The cells to race, the default first; `choice` is their matrix.

    `balanced` are the ids of those in the product of the axes, `impossible` the points that no cell can have, with
    reasons, `fixed` the axes with a single value, and `untried` the cells that were left out.
    """

    choice: CellChoice
    cells: list[Cell]
    balanced: frozenset[str]
    impossible: Mapping[str, str]
    fixed: Mapping[str, Scalar] = field(default_factory=dict)
    untried: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class TuneGoal:
    """What is to be least, and the tolerated excess over the best; `job_steps` are steps of the default's batch."""

    aim: Aim
    job_steps: int
    most_memory_bytes: int | None
    within: float

    def objective(self, default: Settings) -> Objective:
        """Return what is to be least, for the batch of the default."""
        batch_size = 1 if default.script else default.batch_size
        return Objective(self.aim, self.job_steps * batch_size, self.most_memory_bytes)


# --- The candidates ---------------------------------------------------------------------------------------------------


def axis_of(key: str, values: Sequence[Scalar], installed: Sequence[str]) -> Axis:
    """Return the axis of a key with these values; without any, those that the key allows. Raises `UsageError`."""
    if key == "backend":
        return Axis(key, tuple(values or installed))
    if key in NO_AXES or (key in DEFAULTS and key not in SETTINGS):
        raise UsageError(f"--over: {key}: must be equal for all candidates; fix it with --set {key}=VALUE")
    rule = SETTINGS.get(key, USER_PARAM)
    tried = tuple(values) or USUAL_VALUES.get(key) or (() if rule.kind else rule.choices)
    if not tried:
        raise UsageError(f"--over: {key}: needs its values, as in {key}=32|64")
    for value in tried:
        if problem := rule.problem(value):
            raise UsageError(f"--over: {key}: {problem}")
    return Axis(key, tuple(dict.fromkeys(map(rule.normal, tried))))


def of_model(
    model: str, axes: Sequence[Axis], default: Mapping[str, Scalar], backend: str, overrides: Overrides
) -> Entrants:
    """Return the product of the axes for a workload or a program, and its default cell, on `backend` if none is named.

    Raises `InputError`.
    """
    workload, name = _workload(model)
    keys, count = [axis.key for axis in axes], math.prod(len(axis.values) for axis in axes)
    if count > MOST_CANDIDATES:
        raise UsageError(f"--over: must make at most {MOST_CANDIDATES:,} candidates, got {count:,}; use fewer values")
    points = [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]
    own = _arguments(workload, overrides)
    usual = {"backend": backend, **own, **default}
    entries, impossible = dict[str, dict[str, Any]](), dict[str, str]()
    (default_cell,) = _choice(name, [_entry(workload, usual)], overrides).load()[1]
    entries[default_cell.cell_id] = _entry(workload, usual)
    balanced, last_error = set[str](), None
    for point in points:
        entry = _entry(workload, {"backend": backend, **own, **point})
        try:
            (cell,) = _choice(name, [entry], overrides).load()[1]
        except InputError as error:
            impossible[" ".join(assignment(key, value) for key, value in point.items())] = _reason(error)
            last_error = error
            continue
        balanced.add(cell.cell_id)
        entries.setdefault(cell.cell_id, entry)
    if not balanced and last_error is not None:
        raise UsageError(f"--over: {_reason(last_error)}") from last_error
    choice = _choice(name, list(entries.values()), overrides)
    matrix, cells = choice.load()
    choice.check_workloads(matrix, cells)
    fixed = {axis.key: axis.values[0] for axis in axes if len(axis.values) == 1}
    return Entrants(choice, cells, frozenset(balanced), impossible, fixed)


def _workload(model: str) -> tuple[str | dict[str, str], Path]:
    """Return the workload of a matrix entry, and the name of its matrix. Raises `UsageError`."""
    if model.endswith(".py"):
        path = Path(model)
        if not path.is_file():
            raise UsageError(f"MODEL: {path}: must be a program of Python, such as train.py; there is no such file")
        project = project_of(path.resolve())
        return {"script": str(path.resolve().relative_to(project))}, project / OF_ONE_PROGRAM
    known = workload_named(model, catalog.load())
    if isinstance(known, str):
        raise UsageError(f"MODEL: {known}")
    return model, OF_ONE_WORKLOAD


def _arguments(workload: str | dict[str, str], overrides: Overrides) -> dict[str, Scalar]:
    """Return what `--set` gives a user's own function and is no setting."""
    if not isinstance(workload, str) or not is_users(workload):
        return {}
    return {key: value for key, value in overrides.assignments.items() if key not in DEFAULTS}


def _entry(workload: str | dict[str, str], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return the matrix entry of a point, which has a backend."""
    own = {key: value for key, value in values.items() if key != "backend"}
    params = {key: value for key, value in own.items() if key not in DEFAULTS}
    if isinstance(workload, str) and workload in catalog.load().workloads:
        params = {}  # they are keys of the entry, as settings are
    settings = {key: value for key, value in own.items() if key not in params}
    entry = {"workload": workload, "backends": [values["backend"]], **settings}
    return {**entry, "params": params} if params else entry


def _choice(name: Path, entries: Sequence[dict[str, Any]], overrides: Overrides) -> CellChoice:
    backends = list(dict.fromkeys(backend for entry in entries for backend in entry["backends"]))
    matrix = {"version": 1, "backends": backends, "cells": list(entries)}
    return CellChoice(name, overrides, text=json.dumps(matrix, indent=1))


def _reason(error: InputError) -> str:
    """Return what is wrong with a point, without its place in a matrix that nobody has written."""
    text = error.problems[0] if isinstance(error, MatrixError) else str(error)
    return text.partition("cells[0]")[2].lstrip(".: ") or text


def of_matrix(choice: CellChoice, default: Mapping[str, Scalar]) -> Entrants:
    """Return every cell of a matrix; the default is the first one that has these values. Raises `InputError`."""
    matrix, cells = choice.load()
    choice.check_workloads(matrix, cells)
    if any(cell.task for cell in cells):
        raise UsageError(f"{choice.matrix}: an external command cannot be tuned: leave it out with --filter workload=")
    for key in ("workload", "phase", "device", "data"):
        values = list(dict.fromkeys(str(getattr(cell.settings, key)) for cell in cells))
        if len(values) > 1:
            text = f"{key}: must be equal for all candidates, got {', '.join(values)}"
            raise UsageError(f"{choice.matrix}: {text}; choose one with --filter {key}={values[0]}")
    chosen = next((cell for cell in cells if _has(cell.settings, default)), None)
    if chosen is None:
        text = " ".join(assignment(key, value) for key, value in default.items())
        raise UsageError(f"--default: no cell of {choice.matrix} has {text}")
    ordered = [chosen, *(cell for cell in cells if cell is not chosen)]
    return Entrants(choice, ordered, frozenset(cell.cell_id for cell in cells), {})


def _has(settings: Settings, values: Mapping[str, Scalar]) -> bool:
    own = named(settings)
    return all(key in own and canonical(own[key]) == canonical(value) for key, value in values.items())


def limited(entrants: Entrants, most: int | None, earlier_costs_s: Mapping[str, float]) -> Entrants:
    """Return at most so many entrants: the default, then the fastest of earlier runs, then those never measured.

    Those that earlier runs found much slower come last. What was never measured is in the order of a hash, so that each
    value of an axis is about equally often among what is tried.
    """
    default, *others = entrants.cells
    if most is None or most > len(others):
        return entrants
    lowest_s = min(earlier_costs_s.values(), default=math.inf)

    def place(cell: Cell) -> tuple[int, float, str]:
        cost_s = earlier_costs_s.get(cell.cell_id)
        group = 1 if cost_s is None else 0 if cost_s <= SURELY_SLOWER * lowest_s else 2
        return group, cost_s or 0.0, hashlib.sha256(cell.cell_id.encode()).hexdigest()

    ordered = sorted(others, key=place)
    chosen = {cell.cell_id for cell in ordered[: most - 1]}
    cells = [default, *(cell for cell in others if cell.cell_id in chosen)]
    return replace(entrants, cells=cells, untried=tuple(ordered[most - 1 :]))


def earlier_costs(results: Path, cells: Iterable[Cell], objective: Objective) -> dict[str, float]:
    """Return the median cost of those candidates that the newest runs of a results folder measured, by cell_id."""
    cell_ids = {cell.cell_id for cell in cells}
    costs: dict[str, list[float]] = {}
    for run in list(reversed(Results(results).runs()))[:LOOKED_BACK]:
        for record in run.load()[0]:
            if record.cell_id in cell_ids and record.status in MEASURED and (cost := objective.cost(record)):
                costs.setdefault(record.cell_id, []).append(cost)
    return {cell_id: statistics.median(own) for cell_id, own in costs.items()}


# --- The race ---------------------------------------------------------------------------------------------------------


def candidates_of(entrants: Entrants, goal: TuneGoal) -> Candidates:
    """Return the candidates of these entrants, the first of which is the default."""
    settings = {cell.cell_id: cell.settings for cell in entrants.cells}
    default = entrants.cells[0]
    return Candidates(
        settings,
        names_of(entrants.cells),
        default.cell_id,
        goal.objective(default.settings),
        RaceRule(len(settings), goal.within),
    )


def names_of(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the text of each cell: its backend, and the settings in which they differ."""
    keys = [key for key in _varying(cells) if key != "backend"]
    return {cell.cell_id: " ".join([cell.settings.backend, *(_texts(cell.settings, keys).values())]) for cell in cells}


def _texts(settings: Settings, keys: Iterable[str]) -> dict[str, str]:
    values = named(settings)
    return {key: assignment(key, values[key]) for key in keys if key in values}


def _varying(cells: Sequence[Cell]) -> list[str]:
    """Return the keys in which cells differ, in the order of the settings."""
    all_values = [named(cell.settings) for cell in cells]
    keys = varying_keys(all_values) - {"set_by_matrix"}
    return [key for key in dict.fromkeys(key for values in all_values for key in values) if key in keys]


def check_budget(results: Path, cells: Sequence[Cell], budget_s: float) -> float:
    """Return the estimated duration of one process of each cell. Raises `UsageError` if it is above the budget."""
    block_s = sum(estimates(results, cells).within_limit_s.values())
    if block_s > budget_s:
        most = int(len(cells) * budget_s / block_s)
        fewer = f", or race fewer with --most {most}" if most > 1 else ""
        raise UsageError(
            f"--budget: {duration(budget_s)} do not suffice for one process of each of the {len(cells)} candidates, "
            f"about {duration(block_s)}; allow more{fewer}"
        )
    return block_s


def raced(request: RunRequest, entrants: Entrants, goal: TuneGoal, display: Display) -> TuneView:
    """Race the entrants, confirm the winners, write the report of the run, and return the answer."""
    candidates = candidates_of(entrants, goal)
    budget_s = BUDGET_S if request.budget_s is None else request.budget_s
    cells = [replace(cell, repeats=1, precision_target=OPEN, race=NAME, trace=None) for cell in entrants.cells]
    about = {**entrants.choice.about(), "tune": to_json(goal)}
    experiment = Experiment(
        cells, about, budget_s=budget_s, stopping=_stopping(goal, candidates.default), candidates=candidates
    )
    session = measured(request, with_found_values(request, experiment, display), display)
    run, progress = session.first, race_progress(session.first)
    write_report(run)
    names, keys = names_of([*entrants.cells, *entrants.untried]), _varying(entrants.cells)
    return tune_view(
        RaceOutcome(
            records=tuple(run.load()[0]),
            candidates=candidates,
            run_id=run.run_id,
            confirmed_from=progress.confirmed_from,
            elapsed_s=progress.elapsed_s,
            budget_s=budget_s,
            balanced={
                cell.cell_id: _texts(cell.settings, keys)
                for cell in entrants.cells
                if cell.cell_id in entrants.balanced
            },
            impossible=entrants.impossible,
            untried=tuple(names[cell.cell_id] for cell in entrants.untried),
            use_of=use_of,
        )
    )


def _stopping(goal: TuneGoal, default: str) -> str:
    """Return the name of this way to stop: a race for something else is not continued."""
    return f"{RACE} {hashlib.sha256(canonical([to_json(goal), default]).encode()).hexdigest()[:8]}"


# --- The answer -------------------------------------------------------------------------------------------------------


def use_of(settings: Settings) -> CandidateUse:
    """Return the command that measures a cell again, and its matrix entry, empty for what a file cannot have."""
    values = [(key, value) for key, value in differing(settings) if key not in ("args", "call", "before")]
    if settings.script:
        words = ["runner", "script", settings.script]
        words[2:2] = [word for key, value in values for word in ("--set", assignment(key, value))]
        words[2:2] = ["--backend", settings.backend]
    else:
        words = ["runner", "--workload", settings.workload, "--backend", settings.backend]
        words += [word for key, value in values for word in ("--set", assignment(key, value))]
    try:
        entry = entry_of(settings)
    except (InputError, InfrastructureError):
        entry = ""
    return CandidateUse(shlex.join(words), entry)


def check_new(path: Path) -> None:
    """Refuse a file that exists: it is never replaced. Raises `UsageError`."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"--apply: {path}: already exists and is never replaced; name another file, or move it away")


def apply(path: Path, view: TuneView, settings: Mapping[str, Settings], command: str) -> None:
    """Write the winners and the default as a matrix. Raises `InfrastructureError`, or `UsageError` if it exists now."""
    comments = {answer.cell_id: tuple(answer.comment) for answer in reversed(view.answers)}
    comments.setdefault(view.default, ("the default",))
    choices = [ChosenCell(settings[cell_id], comment) for cell_id, comment in comments.items()]
    check_new(path)
    try:
        files.publish(path, written(choices, [f"Written by: {command}"]).text)
    except OSError as error:
        raise InfrastructureError(f"--apply: {path}: cannot be written: {error.strerror or error}") from error
