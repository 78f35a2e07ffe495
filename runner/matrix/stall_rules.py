"""The key `stalls:` of a matrix file: it replaces an entry by the arms of its stall analysis. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from keras_matrix.records.codec import canonical
from keras_matrix.records.instruments.stall_arms import KEYS, arm_settings, base_of, decided_by_matrix
from keras_matrix.records.settings import PIPELINE, Settings
from keras_matrix.runner.matrix.entry import Entry
from keras_matrix.runner.matrix.grammar import Axes, ValueRule

if TYPE_CHECKING:
    from keras_matrix.runner.matrix.catalog import CatalogWorkload
    from keras_matrix.runner.matrix.strict_yaml import Path
    from keras_matrix.runner.matrix.value_reader import ValueReader

KEY = "stalls"
RULE = ValueRule(
    "bool",
    meaning="measure the arms of a stall analysis: synthetic, host, warm, cold and timed, interleaved (docs/inputs.md)",
)


def read_stalls(reader: ValueReader, path: Path, value: object, own: Axes) -> bool | None:
    """Return whether an entry is analysed; `own` are the axes that it sets itself. None if the value is invalid."""
    wanted = reader.scalar(path, RULE, value)
    if wanted:
        for key in KEYS:
            if key in own and not (key == "feed" and own[key] == (PIPELINE,)):
                reader.refuse(
                    (*path[:-1], key), f"must not be given with {KEY}: true, which measures several; remove one"
                )
    return None if wanted is None else wanted is True


def arms(entry: Entry, *, cold: bool = True) -> list[Entry]:
    """Return the entry of each arm of an entry's stall analysis, and a usual entry as it is."""
    if not entry.stalls:
        return [entry]
    users = entry.workload.is_users
    decided = decided_by_matrix(entry.set_by_matrix) if users else entry.set_by_matrix
    return [
        replace(entry, axes=entry.axes | {key: (value,) for key, value in own.items()}, set_by_matrix=decided)
        for own in arm_settings(cold=cold, users=users)
    ]


def together(settings: Settings) -> str:
    """Return the name that the arms of an analysis share on every backend, so that they are measured interleaved."""
    return canonical(replace(base_of(settings), backend=""))


def problem(workload: CatalogWorkload, phases: Iterable[object]) -> str | None:
    """Return what is wrong with an analysed entry's workload or phases, or None."""
    if not (workload.has_pipeline or workload.is_users):
        return f"{KEY} must be false for {workload.name}, which has no input pipeline"
    wrong = [phase for phase in phases if phase != "fit"]
    return f"phase must be fit with {KEY}: true, got {wrong[0]}; write a separate entry for it" if wrong else None
