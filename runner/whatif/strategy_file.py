"""Writes cells as a matrix file with comments, which `runner --matrix FILE` measures as it is.

Promise: the file's cells are exactly the given ones, with the same cell ids; `written` reads the text again and
compares them. Settings at the grammar's default are left out, unless the workload has another default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from keras_matrix.analysis.stats.blocks import MIN_BLOCKS
from keras_matrix.analysis.whatif.search import FamilyTrajectories
from keras_matrix.analysis.whatif.trajectory import Strategy
from keras_matrix.records.fc import rules, spec
from keras_matrix.records.identity import PARAMS, cell_id
from keras_matrix.records.settings import OWN_OPTIONS, Scalar, Settings
from keras_matrix.records.text import near
from keras_matrix.runner.errors import InfrastructureError, MatrixError, UsageError
from keras_matrix.runner.matrix import catalog, reader
from keras_matrix.runner.matrix.grammar import SETTINGS, VERSION
from keras_matrix.runner.matrix.reader import Cell

NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
NOT_TEXT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
FIELDS = tuple(field.name for field in fields(Settings) if field.name in SETTINGS)


@dataclass(frozen=True, slots=True)
class ChosenCell:
    """A cell of the file, with lines of comment that precede it."""

    settings: Settings
    comment: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StrategyFile:
    """The text of a matrix file and its cells, in the order of the choices."""

    text: str
    cells: tuple[Cell, ...]


def with_changes(settings: Settings, changes: Mapping[str, Scalar]) -> Settings:
    """Return settings in which those named by `changes`, or parameters of the workload, have other values.

    Raises `UsageError` for a name that is neither.
    """
    own_settings = {name: value for name, value in changes.items() if name in FIELDS}
    params = {key.removeprefix(PARAMS): value for key, value in changes.items() if key not in own_settings}
    known_parameters = _parameters(settings)
    for name in params:
        if known_parameters is not None and name not in known_parameters:
            raise UsageError(
                f"{settings.workload}: has no setting or parameter {name!r}{near(name, (*known_parameters, *FIELDS))}"
            )
    changed_settings = replace(settings, **own_settings, params={**settings.params, **params})  # type: ignore[arg-type]
    if settings.workload != spec.WORKLOAD:
        return changed_settings
    stored_settings = replace(changed_settings, params=rules.stored_params(changed_settings.params))
    return stored_settings if rules.settings_problems(stored_settings) else rules.normalised_settings(stored_settings)


def written(choices: Sequence[ChosenCell], heading: Iterable[str] = (), repeats: int = MIN_BLOCKS) -> StrategyFile:
    """Return the file for these cells. Raises `MatrixError` for settings that a matrix file may not have."""
    backends = list(dict.fromkeys(choice.settings.backend for choice in choices))
    lines = [
        *(f"# {line}".rstrip() for line in heading),
        f"version: {VERSION}",
        f"defaults: {{repeats: {repeats}}}",
        f"backends: [{', '.join(backends)}]",
        "cells:",
    ]
    for choice in choices:
        lines += [*(f"  # {line}".rstrip() for line in choice.comment), *_entry(choice.settings, len(backends) > 1)]
    text = "\n".join(lines) + "\n"
    cell_by_id = {cell.cell_id: cell for cell in reader.expand(reader.parse(Path("strategy.yaml"), text.encode()))}
    cell_ids = [cell_id(choice.settings) for choice in choices]
    if missing_ids := [chosen_id for chosen_id in cell_ids if chosen_id not in cell_by_id]:
        raise InfrastructureError(f"strategy file: cell {missing_ids[0]} cannot be written as a matrix file:\n{text}")
    return StrategyFile(text, tuple(cell_by_id[chosen_id] for chosen_id in cell_ids))


def entry_of(settings: Settings) -> str:
    """Return the entry of one cell in any matrix file: it names its backend. Raises as `written`."""
    written([ChosenCell(settings, ())])
    return "\n".join(_entry(settings, names_backend=True))


def problem_of(settings: Settings) -> str | None:
    """Return why a matrix file may not have these settings, None if it may."""
    try:
        written([ChosenCell(settings, ())])
    except MatrixError as error:
        return "; ".join(line.split(": ", 2)[-1] for line in error.problems)
    return None


def checked_changes(settings: Settings, changes: Mapping[str, Scalar]) -> Settings:
    """Return settings with other values, as `with_changes`. Raises `UsageError` if a matrix file may not have them."""
    changed_settings = with_changes(settings, changes)
    if problem := problem_of(changed_settings):
        raise UsageError(problem)
    return changed_settings


def possible(trajectories: FamilyTrajectories, base: Settings | None) -> FamilyTrajectories:
    """Return what a search found, without the settings that no cell like `base` may have; their reason says why."""
    if base is None:
        return trajectories
    return replace(trajectories, strategies=tuple(_if_possible(strategy, base) for strategy in trajectories.strategies))


def _if_possible(strategy: Strategy, base: Settings) -> Strategy:
    if strategy.settings is None:
        return strategy
    try:
        checked_changes(base, strategy.settings)
    except UsageError as error:
        return replace(strategy, settings=None, reason=str(error))
    return strategy


def _parameters(settings: Settings) -> Mapping[str, object] | None:
    """Return the parameters of a workload of the catalog; None for a user's own."""
    workload = catalog.load().workloads.get(settings.workload)
    return None if workload is None else workload.params


def _entry(settings: Settings, names_backend: bool) -> list[str]:
    workload = catalog.load().workloads.get(settings.workload)
    usual = {name: rule.default for name, rule in SETTINGS.items()} | (workload.own_defaults if workload else {})
    values: dict[str, Scalar] = {
        name: value
        for name in FIELDS
        if (value := getattr(settings, name)) != usual.get(name) or _decided(settings, name)
    }
    if workload is None:
        values = {name: value for name, value in values.items() if name not in OWN_OPTIONS or _decided(settings, name)}
    lines = [f"  - workload: {_scalar(settings.workload)}"]
    if names_backend:
        lines.append(f"    backends: [{settings.backend}]")
    lines += [f"    {name}: {_scalar(value)}" for name, value in values.items()]
    if workload is None and settings.params:
        lines.append("    params:")
    indent = "      " if workload is None else "    "
    return lines + [f"{indent}{name}: {_scalar(value)}" for name, value in settings.params.items()]


def _decided(settings: Settings, name: str) -> bool:
    """Return whether the matrix decides an option of a user's workload."""
    return name in settings.set_by_matrix.split(",")


def _scalar(value: Scalar) -> str:
    """Return a value as YAML; text in quotes, unless it is a name that no reader of YAML takes for something else."""
    if isinstance(value, str) and NAME.fullmatch(value) and value not in NOT_TEXT:
        return value
    return json.dumps(value)
