"""Texts that all commands share: aligned tables and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


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
