"""Texts that all commands share: aligned tables, tables in Markdown, and JSON documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from keras_matrix.records.text import printable


def document(fields: Mapping[str, object]) -> str:
    """Return the JSON document that a command prints with --json."""
    return json.dumps({"version": 1, **fields}, indent=1, allow_nan=False)


def columns(rows: list[list[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return rows of text as aligned lines; columns whose index is in `right` end flush."""
    return aligned(list(zip(*rows, strict=True)), right)


def aligned(columns: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> list[str]:
    """Return the rows of a table as `columns` does, from the texts of its columns."""
    widths = [max(map(len, texts)) for texts in columns]
    row_format = "  ".join(f"%{width if i in right else -width}s" for i, width in enumerate(widths))
    return [(row_format % texts).rstrip() for texts in zip(*columns, strict=True)]


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of text, of which the first is the heading, as the lines of a table in Markdown."""
    lines = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def markdown_text(text: str) -> str:
    """Return a text on one line that begins no tag and ends no cell of a table."""
    return printable(text, " ").replace("|", "\\|").replace("<", "&lt;")
