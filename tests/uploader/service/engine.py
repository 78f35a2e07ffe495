"""The data of the fake service in DuckDB, and the conflicts between changes of a table.

Documented and modelled (cloud.google.com/bigquery/docs/data-manipulation-language, "DML statement conflicts", and
docs/transactions, "Transaction concurrency"):

* a statement, or a transaction, reads from one snapshot: what others commit later is not visible
* statements that only insert rows, MERGE among them, conflict with nothing
* a transaction that updated or deleted rows of a table excludes others that do: the later one is aborted, whether the
  first is still open or was committed after the later one's snapshot
* a statement outside of a transaction waits for such a transaction, then runs again from a new snapshot; one that
  meets other statements is repeated up to three times, then fails

Not modelled: partitions (the service lets statements outside of a transaction change different partitions of a table
at the same time; here they conflict by rows, as in DuckDB) and the limit of two statements that run at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import duckdb

from tests.uploader.service import problems
from tests.uploader.service.problems import Refusal


class Conflict(Exception):
    """A concurrent change of the table was committed."""

    def __init__(self, table: str) -> None:
        """Store the table's name."""
        super().__init__(table)
        self.table = table


@dataclass(eq=False)
class Work:
    """One transaction: its cursor, the snapshot it reads, and the tables whose rows it updated or deleted."""

    cursor: duckdb.DuckDBPyConnection
    snapshot: int
    lasting: bool
    changed: set[str] = field(default_factory=set)


class Engine:
    """A DuckDB database in memory; each job has one transaction at a time."""

    def __init__(self) -> None:
        """Create an empty database."""
        self._connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection.execute("CREATE TABLE snapshot (n BIGINT)")
        self._changes = threading.Condition(threading.RLock())
        self._commits = 0
        self._open: set[Work] = set()
        self._committed: dict[str, int] = {}
        self.definitions = threading.RLock()
        self.changing = threading.RLock()  # serialises statements, so that each sees claims and no incomplete statement

    def close(self) -> None:
        """Remove all data."""
        self._connection.close()

    def begin(self, *, lasting: bool = False) -> Work:
        """Start a transaction with a snapshot; `lasting` for one that BEGIN TRANSACTION opens."""
        with self._changes:
            cursor = self._connection.cursor()
            cursor.execute("SET TimeZone = 'UTC'")
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM snapshot").fetchall()  # DuckDB takes its snapshot with the first read
            work = Work(cursor, self._commits, lasting)
            self._open.add(work)
            return work

    def claim(self, work: Work, table: str) -> None:
        """Record that a transaction updated or deleted rows of a table. Raises `Conflict` if another one did too."""
        with self._changes:
            if any(table in one.changed for one in self._open if one is not work):
                raise Conflict(table)
            if self._committed.get(table, 0) > work.snapshot:
                raise Conflict(table)
            work.changed.add(table)

    def commit(self, work: Work) -> None:
        """Commit a transaction. Raises `Conflict` if DuckDB rejects it."""
        with self._changes:
            try:
                work.cursor.execute("COMMIT")
            except duckdb.TransactionException as error:
                raise Conflict(next(iter(work.changed), "of the transaction")) from error
            finally:
                self._end(work)
            self._commits += 1
            self._committed |= dict.fromkeys(work.changed, self._commits)

    def roll_back(self, work: Work) -> None:
        """Roll a transaction back."""
        with self._changes:
            if work in self._open:
                work.cursor.execute("ROLLBACK")
                self._end(work)

    def wait_while_changed(self, table: str, limit_s: float) -> bool:
        """Wait until no open transaction has changed rows of a table; return whether that is before the timeout."""
        ends = time.monotonic() + limit_s
        with self._changes:
            while any(table in one.changed for one in self._open):
                if not self._changes.wait(ends - time.monotonic()):
                    return False
        return True

    @contextmanager
    def autocommit(self) -> Iterator[Work]:
        """Yield a transaction that is committed at the end of the block, or rolled back after an exception."""
        work = self.begin()
        try:
            yield work
            self.commit(work)
        finally:
            self.roll_back(work)

    def define(self, *statements: str) -> None:
        """Run statements that define schemas and tables, one caller at a time."""
        with self.definitions, self.autocommit() as work:
            for sql in statements:
                execute(work, sql)

    def count(self, sql: str) -> int:
        """Return the single number that a query returns."""
        with self.autocommit() as work:
            [(found,)] = execute(work, sql).fetchall()
            return int(found)

    def _end(self, work: Work) -> None:
        self._open.discard(work)
        work.cursor.close()
        self._changes.notify_all()


def execute(work: Work, sql: str, given: dict[str, Any] | Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
    """Run one statement of DuckDB's. Raises `Conflict`, or `Refusal` with the service's reason."""
    try:
        return work.cursor.execute(sql, given)
    except duckdb.TransactionException as error:
        raise Conflict("") from error
    except duckdb.ConstraintException as error:
        column = str(error).strip().rpartition(".")[2].strip('"')
        raise problems.invalid_query(f"Required field {column} cannot be null") from error
    except duckdb.BinderException as error:
        raise _unbound(str(error)) from error
    except duckdb.Error as error:
        raise problems.invalid_query(str(error).splitlines()[0]) from error


def _unbound(text: str) -> Refusal:
    """Return the error for a missing name, in the service's wording as far as DuckDB's message allows."""
    line = text.splitlines()[0]
    if 'Referenced column "' in line:
        name = line.split('"')[1]
        return problems.invalid_query(f"Unrecognized name: {name}")
    return problems.invalid_query(line.removeprefix("Binder Error: "))
