"""Cells named on the command line: by the beginning of an id, by a workload, or as in jax:mnist_mlp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from keras_matrix.records.settings import Settings
from keras_matrix.records.task import PREFIX
from keras_matrix.records.text import near
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.settings_text import settings_text

HELP = "a cell id or its beginning, or a workload, as in mnist_mlp or jax:mnist_mlp"


def matching(text: str, there: Mapping[str, Settings]) -> list[str]:
    """Return the ids of the cells that a text names; `there` are the settings by id."""
    return sorted(cell for cell, settings in there.items() if cell.startswith(text) or text in _names(settings))


def one_of(text: str, there: Mapping[str, Settings], where: str) -> str:
    """Return the id of the cell that a text names. Raises `UsageError` if there is no such cell or more than one."""
    found = matching(text, there)
    if not found:
        refuse(text, there, where)
    if len(found) > 1:
        ask(text, found, there)
    return found[0]


def ask(text: str, found: Sequence[str], there: Mapping[str, Settings]) -> None:
    """Raise `UsageError` for a text that names several cells."""
    lines = [f"  {cell}  {there[cell].backend:<10}  {settings_text(there[cell])}" for cell in found]
    raise UsageError("\n".join([f"CELL: {text!r} names {len(found)} cells; name one by its id:", *lines]))


def refuse(text: str, there: Mapping[str, Settings], where: str, unread: Sequence[str] = ()) -> NoReturn:
    """Raise `UsageError` for a text that names no cell; `unread` are lines about files that may have it."""
    names = sorted({f"{settings.backend}:{settings.workload}" for settings in there.values()})
    known = {name for settings in there.values() for name in _names(settings)}
    message = f"CELL: no cell of {where} is named {text!r}{near(text, sorted(known))}; there are {', '.join(names)}"
    raise UsageError("\n".join([message, *unread]))


def _names(settings: Settings) -> set[str]:
    plain = {settings.workload, settings.workload.removeprefix(PREFIX)}
    return plain | {f"{settings.backend}:{name}" for name in plain}
