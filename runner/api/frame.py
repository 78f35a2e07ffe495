"""Cells as a table of columns: a DataFrame of pandas or polars, or plain lists.

Neither library is required; they are imported only here, when a table is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from keras_matrix.runner.api.rows import Cell
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix.grammar import near

LIBRARIES = ("pandas", "polars")
PLAIN = "dict"
NESTED = {"settings": "", "params": "params.", "statistics": ""}  # fields whose values are columns, with their prefix


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
    return {name: [row.get(name) for row in rows] for name in names}


def _flat(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for one in fields(cell):
        value = getattr(cell, one.name)
        if one.name in NESTED:
            row |= {f"{NESTED[one.name]}{name}": item for name, item in value.items()}
        else:
            row[one.name] = "; ".join(value) if isinstance(value, tuple) else value
    return row
