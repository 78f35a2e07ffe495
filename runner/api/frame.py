"""Cells as a table of columns: a DataFrame of pandas or polars, or plain lists.

Neither library is required; they are imported only here, when a table is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from keras_matrix.records.names import PARAMS, value_as_text
from keras_matrix.records.text import near
from keras_matrix.runner.api.rows import SETTINGS, Cell
from keras_matrix.runner.errors import UsageError

LIBRARIES = ("pandas", "polars")
PLAIN = "dict"
NESTED = {"settings": "", "params": PARAMS, "statistics": ""}  # fields whose values are columns, with their prefix
TAKEN = frozenset({*(one.name for one in fields(Cell)), *SETTINGS})  # no column of a metric that a command has named


def frame(cells: Sequence[Cell], library: str | None) -> Any:
    """Return the cells as a table: with None that of the first of `LIBRARIES` that is installed.

    Raises `UsageError` for a library that is unknown or not installed.
    """
    if library is None:
        library = next((name for name in LIBRARIES if find_spec(name)), PLAIN)
    if library not in (*LIBRARIES, PLAIN):
        known = (*LIBRARIES, PLAIN)
        raise UsageError(f"to_frame: must be one of {', '.join(known)}, got {library!r}{near(str(library), known)}")
    found = columns(cells)
    if library == PLAIN:
        return found
    try:
        made = import_module(library).DataFrame(found)
    except ImportError as error:
        advice = f"install it with: pip install {library}"
        raise UsageError(f"to_frame: {library} cannot be imported ({error}); {advice}") from error
    return made


def columns(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """Return a list of values for each field of the cells, for each setting, parameter and statistic of any of them."""
    rows = [_flat(cell) for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _of_one_type([row.get(name) for row in rows]) for name in names}


def _of_one_type(column: list[Any]) -> list[Any]:
    """Return a column whose values have one type, as polars demands: numbers become floats, other mixtures texts.

    A setting may have values of several types, as in `threads: [all, 2]`. None is a value of every type.
    """
    types = {type(value) for value in column if value is not None}
    if len(types) < 2:
        return column
    common: Callable[[Any], Any] = float if types == {int, float} else _text
    return [None if value is None else common(value) for value in column]


def _column(field: str, name: str) -> str:
    """Return the name of the column of a value; a statistic named like another column is `statistics.NAME`."""
    is_taken = field == "statistics" and (name in TAKEN or name.startswith((PARAMS, "statistics.")))
    return f"{field}.{name}" if is_taken else f"{NESTED[field]}{name}"


def _text(value: Any) -> str:
    """Return a value as text, spelled as in a matrix file."""
    return value_as_text(value) if isinstance(value, str) else json.dumps(value)


def _flat(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for one in fields(cell):
        value = getattr(cell, one.name)
        if one.name in NESTED:
            row |= {_column(one.name, name): item for name, item in value.items()}
        else:
            row[one.name] = "; ".join(value) if isinstance(value, tuple) else value
    return row
