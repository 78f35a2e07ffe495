"""Texts that all commands share: numbers with three significant digits and a unit, tables, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

NOTHING = "-"


def seconds(value: float | None) -> str:
    """Return a duration such as `4.21 ms`."""
    if value is None:
        return NOTHING
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(value) < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{significant(value)} s"


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with that many significant digits and no exponent."""
    if value is None:
        return NOTHING
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def count(value: int | float | None) -> str:
    """Return a large count such as `25.6 M`."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{significant(value / limit)} {unit}"
    return str(value)


def size(value: int | None) -> str:
    """Return a size such as `812 MiB`."""
    if value is None:
        return NOTHING
    if value >= 1 << 30:
        return f"{significant(value / (1 << 30))} GiB"
    return f"{significant(value / (1 << 20))} MiB"


def document(fields: Mapping[str, object]) -> str:
    """Return the JSON document that a command prints with --json."""
    return json.dumps({"version": 1, **fields}, indent=1, allow_nan=False)


def columns(rows: list[list[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return rows of text as aligned lines; columns whose index is in `right` end flush."""
    return aligned(list(zip(*rows, strict=True)), right)


def aligned(columns: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return the rows of a table as `columns` does, from the texts of its columns."""
    widths = [max(map(len, texts)) for texts in columns]
    row = "  ".join(f"%{width if i in right else -width}s" for i, width in enumerate(widths))
    return [(row % texts).rstrip() for texts in zip(*columns, strict=True)]
