"""How a table in the warehouse differs from its definition; pure.

Only one difference can be mended without asking: a column that is missing and may be NULL is added. Anything else is
told before a row is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uploader.errors import SchemaDiffers
from uploader.schema import TABLES, Column, Mode, Table
from uploader.warehouse import Actual, Warehouse

# What BigQuery's API calls the types of its SQL.
ALIASES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}


@dataclass(frozen=True, slots=True)
class Difference:
    """What is wrong with one table: columns that can be added, and what only a person can decide."""

    table: Table
    absent: bool
    missing: tuple[Column, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether the table is not as it should be."""
        return self.absent or bool(self.missing) or bool(self.wrong)

    def lines(self) -> list[str]:
        """Return the difference in words."""
        if self.absent:
            return [f"{self.table.name}: is missing"]
        missing = [f"{self.table.name}.{one.name}: is missing ({one.type} {one.mode})" for one in self.missing]
        return [*missing, *self.wrong]


def difference(table: Table, actual: Actual | None) -> Difference:
    """Compare a table as it is with its definition. Columns of someone else's do no harm, unless they are REQUIRED."""
    if actual is None:
        return Difference(table, absent=True)
    wrong, missing = [], []
    for column in table.columns:
        found = actual.get(column.name)
        if found is None:
            if column.mode is Mode.REQUIRED:
                wrong.append(f"{table.name}.{column.name}: is missing and cannot be added (REQUIRED)")
            else:
                missing.append(column)
        elif fault := _fault(column, found):
            wrong.append(f"{table.name}.{column.name}: {fault}")
    known = {column.name for column in table.columns}
    strangers = [name for name, (_, mode) in actual.items() if name not in known and mode == Mode.REQUIRED]
    wrong += [f"{table.name}.{name}: is not ours and REQUIRED: no row can be added" for name in strangers]
    return Difference(table, absent=False, missing=tuple(missing), wrong=tuple(wrong))


def _fault(column: Column, found: tuple[str, str]) -> str | None:
    kind, mode = ALIASES.get(found[0], found[0]), found[1]
    if kind != column.type:
        return f"is {kind}, must be {column.type}"
    if (mode == Mode.REPEATED) != (column.mode is Mode.REPEATED):
        return f"is {mode}, must be {column.mode}"
    if mode == Mode.REQUIRED and column.mode is Mode.NULLABLE:
        return "is REQUIRED, must be NULLABLE"
    return None


def differences(warehouse: Warehouse) -> list[Difference]:
    """Return what is wrong with a warehouse's tables."""
    found = [difference(table, warehouse.actual(table)) for table in TABLES]
    return [one for one in found if one.any]


def refuse(found: Sequence[Difference], address: str) -> None:
    """Raise `SchemaDiffers` where something is wrong; the message lists all of it and says what to do."""
    if not found:
        return
    lines = "\n  ".join(line for one in found for line in one.lines())
    if any(one.wrong for one in found):
        advice = "put that right by hand, or name another dataset: uploader never changes or drops a column"
    elif all(one.absent for one in found):
        advice = f"make them with: uploader init --to {address}"
    else:
        advice = f"add what is missing with: uploader migrate --to {address}"
    raise SchemaDiffers(f"{address}: the tables are not as this version needs them:\n  {lines}\n{advice}")
