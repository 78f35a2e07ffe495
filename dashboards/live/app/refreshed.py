"""A source for a warehouse with costs per query: a snapshot, refreshed once per period while there are visitors.

Regardless of the number of visitors and choices, each table is read successfully at most once per period, by one
refresh at a time, and nothing is read without a visitor. A visitor waits only for the first snapshot; during later
refreshes the previous one is shown, and if a refresh fails the page shows since when and why.

A `Snapshot` is an in-memory copy of the rows that the dashboard's questions read from a warehouse, from one day on.
It is read with one SELECT per table, bounded by day, of the needed columns only; it answers the questions as the
warehouse would for those days, and does not query the warehouse again. An incomplete snapshot retains its tables: the
next attempt reads only the missing ones.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_matrix.dashboards.live.app.needed import Needed
from keras_matrix.dashboards.live.app.source import Edition
from keras_matrix.dashboards.live.questions import DEFAULT_DAYS, Reader
from keras_matrix.records.text import moment, plural
from keras_matrix.uploader.errors import Unreachable, UploadError, WarehouseFailure
from keras_matrix.uploader.local import parquet
from keras_matrix.uploader.schema import BY_NAME, Table
from keras_matrix.uploader.sql import to_duckdb, translated_views
from keras_matrix.uploader.warehouse import QueryResult, Scalar, Warehouse

if TYPE_CHECKING:
    import duckdb

RETRY_S = 60.0  # after a failure: BigQuery does not bill failed queries
FIRST_WAIT_S = 60.0  # the longest wait of a visitor for the first snapshot


@dataclass(frozen=True, slots=True)
class RefreshPolicy:
    """The period of refreshes, and the first day to read, by default `DEFAULT_DAYS` before each refresh."""

    period_s: float = 600.0
    since: str | None = None


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="refresh", daemon=True).start()


@dataclass(frozen=True, slots=True)
class RefreshClocks:
    """The clocks and the starter of a refresh; `now` is the wall clock, which is used only for labels."""

    now: Callable[[], datetime]
    clock: Callable[[], float] = time.monotonic
    start: Callable[[Callable[[], None]], None] = _in_background
    first_wait_s: float = FIRST_WAIT_S


@dataclass(frozen=True, slots=True)
class _Reading:
    """A snapshot and the begin of its reading."""

    snapshot: Snapshot
    began_s: float
    began: datetime


class Refreshed:
    """Snapshots of one warehouse."""

    def __init__(self, warehouse: Warehouse, needed: Needed, terms: RefreshPolicy, times: RefreshClocks) -> None:
        self._warehouse = warehouse
        self._needed = needed
        self._terms = terms
        self._times = times
        self._changed = threading.Condition()
        self._running = False
        self._next_s: float | None = None  # time of the next refresh; None: at the first visit
        self._number = 0
        self._shown: _Reading | None = None
        self._unfinished: _Reading | None = None  # used only by the refresh
        self._failure: UploadError | None = None
        self._failing_since: datetime | None = None

    @property
    def address(self) -> str:
        """The address of the warehouse."""
        return self._warehouse.address

    def edition(self) -> Edition:
        """Return the newest snapshot; start a refresh if the period is over. Raises `UploadError` without one."""
        if self._claimed():
            self._begin()
        with self._changed:
            if self._shown is None:
                self._changed.wait_for(lambda: not self._running, self._times.first_wait_s)
            if (edition := self._current()) is not None:
                return edition
            raise self._failure or Unreachable("The first reading is not complete: reload this page in a minute.")

    def peek(self) -> Edition | None:
        """Return the newest snapshot, None before the first visit. Raises `UploadError` if the first reading failed."""
        with self._changed:
            if self._shown is None and self._failure is not None:
                raise self._failure
            return self._current()

    def _claimed(self) -> bool:
        """Return whether the caller must start a refresh: one is due and no other is running."""
        with self._changed:
            is_due = self._next_s is None or self._times.clock() >= self._next_s
            is_claimed = is_due and not self._running
            self._running |= is_claimed
            return is_claimed

    def _begin(self) -> None:
        try:
            self._times.start(self._refresh)
        except RuntimeError as error:  # no thread can be started
            with self._changed:
                self._record(Unreachable(f"{error}; end other programs, or give the container more processes"))
                self._running = False

    def _refresh(self) -> None:
        """Read a snapshot and show it; after a failure, continue to show the previous one."""
        failure: UploadError | None = Unreachable("an unexpected error; see the program's log")
        try:
            self._fill()
            failure = None
        except UploadError as error:
            failure = error
        finally:
            with self._changed:
                self._record(failure)
                self._running = False
                self._changed.notify_all()

    def _fill(self) -> None:
        """Complete the unfinished snapshot, or read a new one if it is older than a period."""
        times = self._times
        reading = self._unfinished
        if reading is None or times.clock() - reading.began_s >= self._terms.period_s:
            began = times.now()
            since = self._terms.since or (began.date() - timedelta(days=DEFAULT_DAYS)).isoformat()
            reading = self._unfinished = _Reading(Snapshot(self._needed, since), times.clock(), began)
        reading.snapshot.fill(self._warehouse)

    def _record(self, failure: UploadError | None) -> None:
        """Record the result of a refresh and the earliest time of the next one."""
        self._failure = failure
        if failure is None and self._unfinished is not None:
            self._shown, self._unfinished = self._unfinished, None
            self._number += 1
            self._failing_since = None
            self._next_s = self._shown.began_s + self._terms.period_s
        else:
            self._failing_since = self._failing_since or self._times.now()
            self._next_s = self._times.clock() + min(RETRY_S, self._terms.period_s)

    def _current(self) -> Edition | None:
        if (shown_page := self._shown) is None:
            return None
        minutes = int(self._times.clock() - shown_page.began_s) // 60
        age_text = f"{plural(minutes, 'minute')} ago" if minutes else "less than a minute ago"
        read_at = moment(shown_page.began.isoformat())
        since = shown_page.snapshot.since
        notices: tuple[str, ...] = ()
        if self._failure is not None and self._failing_since is not None:
            failing = moment(self._failing_since.isoformat())
            text = f"These rows were read on {read_at}. Reading newer ones has failed since {failing}: {self._failure}"
            notices = (text,)
        origin_text = f"Read from {self.address} {age_text}, on {read_at}: the runs since {since}."
        return Edition(
            shown_page.snapshot, self._number, origin_text, since, notices, partial(_empty_notice, self.address, since)
        )


def _empty_notice(address: str, since: str) -> str:
    return (
        f"No run since {since}: `runner --matrix matrix.yaml` measures, `uploader push --to {address}` uploads, "
        "`runner dashboard --since DATE` reads further back."
    )


class Snapshot:
    """Tables and views in an in-memory engine, for one thread at a time."""

    def __init__(self, needed: Needed, since: str) -> None:
        self.since = since
        self._needed = needed
        self._read: set[str] = set()
        self._engine = parquet.engine()

    def fill(self, warehouse: Reader) -> None:
        """Read the missing tables. Raises `UploadError`; tables that were already read are retained."""
        import duckdb

        try:
            for name, columns in self._needed.columns.items():
                if name not in self._read:
                    _load(self._engine, BY_NAME[name], warehouse.query(statement(name, columns), {"since": self.since}))
                    self._read.add(name)
            sql = translated_views()
            for name in self._needed.views:
                self._engine.execute(f'CREATE OR REPLACE VIEW "{name}" AS {sql[name]}')
        except (duckdb.Error, OSError) as error:
            raise WarehouseFailure(
                f"the rows cannot be copied into memory: {str(error).splitlines()[0]}; check the space in "
                f"{tempfile.gettempdir()}, where they are written to a file"
            ) from error

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Answer one SELECT in BigQuery's dialect. Raises `WarehouseFailure`."""
        import duckdb

        try:
            cursor = self._engine.execute(to_duckdb(sql), dict(parameters or {}))
        except duckdb.Error as error:
            raise WarehouseFailure(f"the query failed: {str(error).splitlines()[0]}") from error
        return QueryResult(tuple(str(column[0]) for column in cursor.description or []), cursor.fetchall())


def statement(table: str, columns: tuple[str, ...]) -> str:
    """Return the SELECT that reads columns of a table from the day @since on."""
    return f"SELECT {', '.join(columns)} FROM {table} WHERE day >= CAST(@since AS DATE)"


def _load(engine: duckdb.DuckDBPyConnection, table: Table, answer: QueryResult) -> None:
    """Create a table from an answer, using a file: inserting row by row takes 100 times as long."""
    types = {name: parquet.type_of(table.column(name)) for name in answer.columns}
    columns_sql = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    engine.execute(f'CREATE OR REPLACE TABLE "{table.name}" ({columns_sql})')
    columns_text = ", ".join(f"{parquet.text(name)}: {parquet.text(kind)}" for name, kind in types.items())
    with tempfile.TemporaryDirectory(prefix="keras-benchmark-") as folder:
        path = Path(folder) / "rows.ndjson"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(_lines(answer))
        engine.execute(
            f'INSERT INTO "{table.name}" SELECT * FROM read_json({parquet.text(str(path))}, '
            f"format = 'newline_delimited', columns = {{{columns_text}}}, "
            f"maximum_object_size = {parquet.LONGEST_LINE_BYTES})"
        )


def _lines(answer: QueryResult) -> Iterator[str]:
    """Yield the rows as JSON; a number that is not finite becomes null."""
    for row in answer.dicts():
        yield json.dumps({name: None if _not_finite(v) else v for name, v in row.items()}, default=_text) + "\n"


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
