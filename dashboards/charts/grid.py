"""Tables of text: a row per name, its values in columns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GridRow:
    """A name and its values, one per column."""

    name: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its title; `lead` explains it."""

    title: str
    columns: list[str]
    rows: list[GridRow]
    lead: str = ""
