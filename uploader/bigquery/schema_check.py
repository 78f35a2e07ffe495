"""Compares the tables of a warehouse with their definitions.

Only one difference is corrected automatically: `uploader migrate` adds missing NULLABLE columns. Any other difference
is reported before a row is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keras_matrix.uploader.errors import SchemaMismatch
from keras_matrix.uploader.schema import TABLES, ColumnMode, Table, TableColumn
from keras_matrix.uploader.warehouse import Actual, Warehouse

# Types in BigQuery's API, and their names in its SQL.
ALIASES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}


@dataclass(frozen=True, slots=True)
class TableDifference:
    """The differences of one table: whether it is absent, missing columns that can be added, and other problems."""

    table: Table
    absent: bool
    missing: tuple[TableColumn, ...] = ()
    wrong: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the difference as lines of text, none for a table that does not differ."""
        if self.absent:
            return [f"{self.table.name}: is missing"]
        missing_texts = [
            f"{self.table.name}.{column.name}: is missing ({column.type} {column.mode})" for column in self.missing
        ]
        return [*missing_texts, *self.wrong]


def difference(table: Table, actual: Actual | None) -> TableDifference:
    """Compare a table with its definition. Unknown columns are ignored unless they are REQUIRED."""
    if actual is None:
        return TableDifference(table, absent=True)
    wrong_texts, missing_columns = [], []
    for column in table.columns:
        type_and_mode = actual.get(column.name)
        if type_and_mode is None:
            if column.mode is ColumnMode.REQUIRED:
                wrong_texts.append(f"{table.name}.{column.name}: is missing and cannot be added (REQUIRED)")
            else:
                missing_columns.append(column)
        elif problem := _problem(column, type_and_mode):
            wrong_texts.append(f"{table.name}.{column.name}: {problem}")
    known_names = {column.name for column in table.columns}
    unknown_names = [
        name for name, (_, mode) in actual.items() if name not in known_names and mode == ColumnMode.REQUIRED
    ]
    wrong_texts += [
        f"{table.name}.{name}: is an unknown REQUIRED column: no row can be added" for name in unknown_names
    ]
    return TableDifference(table, absent=False, missing=tuple(missing_columns), wrong=tuple(wrong_texts))


def _problem(column: TableColumn, type_and_mode: tuple[str, str]) -> str | None:
    kind, mode = ALIASES.get(type_and_mode[0], type_and_mode[0]), type_and_mode[1]
    if kind != column.type:
        return f"is {kind}, must be {column.type}"
    if (mode == ColumnMode.REPEATED) != (column.mode is ColumnMode.REPEATED):
        return f"is {mode}, must be {column.mode}"
    if mode == ColumnMode.REQUIRED and column.mode is ColumnMode.NULLABLE:
        return "is REQUIRED, must be NULLABLE"
    return None


def differences(warehouse: Warehouse) -> list[TableDifference]:
    """Return the tables of a warehouse that differ from their definitions."""
    table_differences = [difference(table, warehouse.actual(table)) for table in TABLES]
    return [table_difference for table_difference in table_differences if table_difference.lines()]


def refuse(table_differences: Sequence[TableDifference], address: str) -> None:
    """Raise `SchemaMismatch` if there are differences; the message lists them and says what to do."""
    if not table_differences:
        return
    lines = "\n  ".join(line for table_difference in table_differences for line in table_difference.lines())
    if any(table_difference.wrong for table_difference in table_differences):
        advice = "correct the columns by hand, or name another dataset: uploader never changes or drops a column"
    elif all(table_difference.absent for table_difference in table_differences):
        advice = f"create them with: uploader init --to {address}"
    else:
        advice = f"add the missing columns with: uploader migrate --to {address}"
    raise SchemaMismatch(f"{address}: the tables differ from the schema of this version:\n  {lines}\n{advice}")
