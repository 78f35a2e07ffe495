"""The warehouse's tables as documented, and a normal form for values from any source.

Of the program only the text of the page that documents its tables is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

from keras_matrix.uploader.bigquery.ddl import page

NOT_COMPARED = "row_hash"  # the reader compares the values that the hash is made from

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type by BigQuery's name, and whether it is REPEATED."""

    name: str
    type: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class Table:
    """One table and the columns that identify a row."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def row(self, values: Mapping[str, Any]) -> Row:
        """Return values as a row in normal form, so that equal values from different sources compare equal."""
        return {column.name: normal(column, values.get(column.name)) for column in self.columns}

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(row[name] for name in self.key)


@cache
def documented() -> tuple[Table, ...]:
    """Return the tables of the page docs/schema.md, as it is built, without views."""
    sections = page().split("\n## ")[1:]
    return tuple(_table(text) for text in sections if not text.partition("\n")[0].endswith("(view)"))


def _table(text: str) -> Table:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \|", text, flags=re.MULTILINE)
    columns = tuple(Column(name, kind, mode == "repeated") for name, kind, mode in rows if name != NOT_COMPARED)
    key = re.search(r"one row for each (.*)\.$", text, flags=re.MULTILINE)
    assert key is not None, f"schema.md: no key in the section {text.partition(chr(10))[0]}"
    return Table(text.partition("\n")[0], columns, tuple(re.findall(r"`(\w+)`", key[1])))


def normal(column: Column, value: Any) -> Any:
    """Return a value in normal form; None, an empty list and an empty JSON object are all NULL."""
    if value is None or value in ([], {}, ()):
        return None
    if column.repeated:
        return tuple(str(one) for one in value)
    if column.type == "JSON":
        return (json.loads(value) if isinstance(value, str) else value) or None
    return _scalar(column.type, value)


def _scalar(kind: str, value: Any) -> Any:
    if kind == "DATE":
        return value.isoformat() if isinstance(value, date) else str(value)
    if kind == "TIMESTAMP":
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if kind == "FLOAT64" and type(value) is int:
        return float(value)
    return value
