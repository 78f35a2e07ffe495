"""Finds lost, duplicated, altered and foreign rows of a warehouse by comparison with the pushed results folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.uploader.reader.actual import Found
from tests.uploader.reader.expected import Rows
from tests.uploader.reader.tables import Row, Table, documented


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of expected rows, and one line for each difference."""

    expected: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    altered: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def differences(self) -> tuple[str, ...]:
        """The lines of all differences."""
        return self.lost + self.doubled + self.altered + self.foreign


def compare(expected: Rows, found: Found) -> Comparison:
    """Compare every value of every row."""
    lost, doubled, altered, foreign = [], [], [], []
    for table in documented():
        wanted, rows = expected[table.name], found[table.name]
        times = Counter(table.key_of(row) for row in rows)
        lost += [f"lost: {table.name} {key}" for key in wanted if key not in times]
        doubled += [f"doubled: {table.name} {key}: {count} rows" for key, count in times.items() if count > 1]
        foreign += [f"foreign: {table.name} {key}" for key in times if key not in wanted]
        for row in rows:
            key = table.key_of(row)
            if key in wanted and row != wanted[key]:
                altered.append(f"altered: {table.name} {key}: {_difference(table, wanted[key], row)}")
    count = sum(map(len, expected.values()))
    return Comparison(count, tuple(lost), tuple(doubled), tuple(altered), tuple(foreign))


def _difference(table: Table, wanted: Row, found: Row) -> str:
    names = [column.name for column in table.columns if wanted[column.name] != found[column.name]]
    return "; ".join(f"{name} is {found[name]!r}, the files say {wanted[name]!r}" for name in names)
