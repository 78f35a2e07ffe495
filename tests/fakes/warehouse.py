"""A fake warehouse: stores rows in memory, one per key, records its calls, and simulates failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.uploader.errors import RowsRefused, WarehouseFailure
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import BY_NAME, TABLES, Table, TableColumn
from keras_matrix.uploader.warehouse import Actual, QueryResult, RowHashes, Scalar

Key = tuple[Any, ...]


@dataclass(slots=True)
class FakeWarehouse:
    """A warehouse in memory. `refuses` returns why a row is refused, or None; each merge raises one of `failures`.

    A failure `(error, True)` is raised after the rows were stored: the response was lost.
    """

    address: str = "fake"
    refuses: Callable[[dict[str, Any]], str | None] = lambda row: None
    failures: list[tuple[WarehouseFailure, bool] | None] = field(default_factory=list)
    rows: dict[str, dict[Key, dict[str, Any]]] = field(default_factory=lambda: {table.name: {} for table in TABLES})
    batches: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, tuple[str, str]]] = field(default_factory=dict)
    first_day: str | None = None

    def create(self) -> list[str]:
        """Create the tables."""
        made = [table.name for table in TABLES if table.name not in self.columns]
        for name in made:
            self.columns[name] = {one.name: (str(one.type), str(one.mode)) for one in BY_NAME[name].columns}
        return made

    def actual(self, table: Table) -> Actual | None:
        """Return a table's columns."""
        return self.columns.get(table.name)

    def add_columns(self, table: Table, columns: Sequence[TableColumn]) -> None:
        """Add columns."""
        self.columns[table.name] |= {one.name: (str(one.type), str(one.mode)) for one in columns}

    def merge(self, batch: Batch) -> int:
        """Store all rows of a batch, or raise the next failure."""
        self.batches.append(batch.name)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not failure[1]:
            raise failure[0]
        rows = list(batch.values())
        for row in rows:
            if (reason := self.refuses(row)) is not None:
                raise RowsRefused(reason)
        stored = self.rows[batch.table.name]
        before = len(stored)
        for row in rows:
            stored.setdefault(tuple(row.get(name) for name in batch.table.key), row)
        if failure is not None:
            raise failure[0]
        return len(stored) - before

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Raise: the fake has no query engine; use the local warehouse."""
        raise WarehouseFailure(f"the fake warehouse runs no queries, got {sql[:40]!r} with {parameters}")

    def row_hashes(self, table: Table, days: tuple[str, str]) -> RowHashes:
        """Return the hashes of a table's rows."""
        rows = self.rows[table.name].items()
        return {key: row["row_hash"] for key, row in rows if days[0] <= row["day"] <= days[1]}

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return None: the fake has no query engine."""

    def retained_from(self) -> str | None:
        """Return `first_day`."""
        return self.first_day

    def is_empty(self) -> bool:
        """Return whether there is no row."""
        return not any(self.rows.values())

    def close(self) -> None:
        """Do nothing."""

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return len(self.rows[table])
