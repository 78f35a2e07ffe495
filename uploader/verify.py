"""Compares the warehouse with the records: row counts, duplicate keys, and sums of row hashes, per run.

A hash covers every value of its row as it was sent, so equal counts and sums mean equal rows. `values=True` also reads
the measurements back and compares each value, which detects values that the warehouse changed. Every query has a lower
bound for the day: that of the oldest run compared. Expired runs are skipped. Rows without a record in the results
folder, such as imported ones, are not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_matrix.records import findings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.store_failure import StoreFailure
from keras_matrix.uploader import rows
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import BY_NAME, FINDINGS, MEASUREMENTS, RUNS, TABLES, Table
from keras_matrix.uploader.warehouse import Warehouse

MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Checksum:
    """Number of rows of one run in one table, and the sum of their hashes."""

    rows: int = 0
    hashes: int = 0


Checksums = Mapping[str, Mapping[str, Checksum]]  # by table and run


@dataclass(frozen=True, slots=True)
class RunDifference:
    """A run whose rows in one table differ from those of its records."""

    table: Table
    run_id: str
    expected: Checksum
    actual: Checksum

    @property
    def missing(self) -> int:
        """The minimum number of missing rows."""
        return max(0, self.expected.rows - self.actual.rows)

    def __str__(self) -> str:
        place_text = f"{self.table.name}, run {self.run_id}"
        if self.actual.rows == self.expected.rows:
            return f"{place_text}: the number of rows is right, but their content differs"
        return f"{place_text}: {self.actual.rows} rows, expected {self.expected.rows} from the records"


@dataclass(slots=True)
class ExpectedRows:
    """The rows expected from the records. `partial` are runs with unreadable records; `unread` has a line for each.

    `expired` are runs that are older than the warehouse's retention; `since` is the day of the oldest run that is
    compared, None if there is no run.
    """

    rows: dict[str, dict[str, Checksum]] = field(default_factory=lambda: {table.name: {} for table in TABLES})
    partial: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    since: str | None = None
    retained_from: str | None = None


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """Summary of a verification, with a line for each problem. `foreign` counts rows without a record here.

    `runs` counts the compared runs with records, `missing` rows, and `expired` runs that are older than the warehouse's
    retention and are skipped.
    """

    expected: int
    found: int
    foreign: int
    problems: tuple[str, ...]
    runs: int = 0
    missing: int = 0
    expired: int = 0


def verify(results: Results, warehouse: Warehouse, *, values: bool = False) -> VerifySummary:
    """Compare the warehouse with the records of a results folder."""
    expected_rows = expected(results, warehouse.retained_from())
    actual = checksums(warehouse, expected_rows.since)
    differing = differences(expected_rows, actual)
    problems = [*listed(differing), *doubled(warehouse, expected_rows.since)]
    if values:
        problems += _values(results, warehouse)
    return VerifySummary(
        _total(expected_rows.rows),
        _total(actual),
        sum(
            checksum.rows
            for name, runs in actual.items()
            for run, checksum in runs.items()
            if run not in expected_rows.rows[name]
        ),
        (*problems, *expected_rows.unread),
        len(expected_rows.rows[RUNS.name]),
        sum(difference.missing for difference in differing),
        len(expected_rows.expired),
    )


def expected(results: Results, retained_from: str | None = None) -> ExpectedRows:
    """Return the rows expected from the records of a results folder."""
    expected_rows = ExpectedRows(retained_from=retained_from)
    expected_rows.unread += [f"not compared: {problem.path}: {problem.reason}" for problem in results.left_out()]
    for run in results.runs():
        if rows.expired(run.run_id, retained_from):
            expected_rows.expired.append(run.run_id)
            continue
        expected_rows.since = expected_rows.since or rows.day_of(run.run_id)
        unread_before = len(expected_rows.unread)
        try:
            for row in rows_of(run, expected_rows.unread):
                counted_sum, text = expected_rows.rows[row.table.name].get(run.run_id, Checksum()), row.line
                row_hash = int(text[text.rindex(":") + 1 : -1])  # the last member of the object
                expected_rows.rows[row.table.name][run.run_id] = Checksum(
                    counted_sum.rows + 1, counted_sum.hashes + row_hash
                )
        except StoreFailure as error:
            expected_rows.unread.append(f"not compared: {error}")
        if len(expected_rows.unread) > unread_before:
            expected_rows.partial.add(run.run_id)
    return expected_rows


def rows_of(run: Run, unread: list[str]) -> Iterator[WarehouseRow]:
    """Yield the rows of a run; add a line for each unreadable record to `unread`. Raises `StoreFailure`."""
    yield rows.of_run(run.run_id, run.about())
    records, problems = run.load()
    unread += [f"not compared: {problem.path}: {problem.reason}" for problem in problems]
    for record in records:
        yield from rows.of_record(record)
    if (run_findings := findings.load(run)) is not None:
        yield from rows.of_findings(run_findings)


def checksums(warehouse: Warehouse, since: str | None) -> Checksums:
    """Return the checksums of each table and run in the warehouse from a day on; without a day, no query is sent."""
    return {} if since is None else {table.name: _by_run(warehouse, table, since) for table in TABLES}


def attempts(warehouse: Warehouse, table: Table, since: str) -> dict[str, int]:
    """Return how many attempts of each run have a row in a table, from a day on."""
    sql = (
        f"SELECT run_id, COUNT(*) AS n FROM (SELECT DISTINCT run_id, cell_id, repeat, attempt FROM {table.name} "
        "WHERE day >= CAST(@since AS DATE)) AS attempts GROUP BY run_id"
    )
    return {str(run_id): int(n) for run_id, n in warehouse.query(sql, {"since": since}).rows}


def differences(expected_rows: ExpectedRows, actual: Checksums) -> list[RunDifference]:
    """Return the runs that differ. A run with unreadable records may have more rows than its readable records."""
    differing = []
    for name, runs in expected_rows.rows.items():
        for run_id, expected_sum in runs.items():
            actual_sum = actual.get(name, {}).get(run_id, Checksum())
            is_unknown = run_id in expected_rows.partial and actual_sum.rows >= expected_sum.rows
            if actual_sum != expected_sum and not is_unknown:
                differing.append(RunDifference(BY_NAME[name], run_id, expected_sum, actual_sum))
    return differing


def listed(differing: list[RunDifference]) -> list[str]:
    """Return a line for each difference, at most `MOST_LISTED` per table, and the number of further ones."""
    lines = []
    for table in TABLES:
        texts = [str(difference) for difference in differing if difference.table is table]
        unlisted_count = len(texts) - MOST_LISTED
        lines += texts[:MOST_LISTED] + ([f"{table.name}: {unlisted_count} more runs"] if unlisted_count > 0 else [])
    return lines


def doubled(warehouse: Warehouse, since: str | None) -> list[str]:
    """Return a line for each table and run with duplicate keys."""
    lines = []
    for table in TABLES if since is not None else ():
        keys_sql = ", ".join(table.key)
        sql = (
            f"SELECT run_id, COUNT(*) AS n FROM (SELECT {keys_sql} FROM {table.name} WHERE day >= CAST(@since AS DATE) "
            f"GROUP BY {keys_sql} HAVING COUNT(*) > 1) AS doubled GROUP BY run_id ORDER BY run_id"
        )
        duplicates = warehouse.query(sql, {"since": since or ""}).rows
        lines += [f"{table.name}, run {run_id}: {n} duplicate keys" for run_id, n in duplicates[:MOST_LISTED]]
        if (unlisted_count := len(duplicates) - MOST_LISTED) > 0:
            lines.append(f"{table.name}: {unlisted_count} more runs with duplicate keys")
    return lines


def _total(checksums: Checksums) -> int:
    return sum(checksum.rows for runs in checksums.values() for checksum in runs.values())


def _by_run(warehouse: Warehouse, table: Table, since: str) -> dict[str, Checksum]:
    """Return a table's checksums by run; for findings, those of the last revision, which the run's folder has."""
    join_sql = ""
    if table is FINDINGS:
        join_sql = (
            "JOIN (SELECT run_id, MAX(revision) AS revision FROM findings WHERE day >= CAST(@since AS DATE) "
            "GROUP BY run_id) AS last ON last.run_id = t.run_id AND last.revision = t.revision "
        )
    sql = (
        f"SELECT t.run_id, COUNT(*) AS n, SUM(t.row_hash) AS hashes FROM {table.name} AS t {join_sql}"
        "WHERE t.day >= CAST(@since AS DATE) GROUP BY t.run_id"
    )
    return {run_id: Checksum(int(n), int(hashes)) for run_id, n, hashes in warehouse.query(sql, {"since": since}).rows}


def _values(results: Results, warehouse: Warehouse) -> list[str]:
    """Compare every measurement, run by run."""
    keys = ("run_id", "cell_id", "repeat", "attempt", "metric", "step", "value", "unit")
    # @since also bounds the scan of an append-only dataset, whose `measurements` is a view.
    sql = (
        f"SELECT {', '.join(keys)} FROM measurements "
        "WHERE day >= CAST(@since AS DATE) AND day = CAST(@day AS DATE) AND run_id = @run"
    )
    retained_from, lines = warehouse.retained_from(), []
    for run in results.runs():
        if rows.expired(run.run_id, retained_from):
            continue
        try:
            measurements = (json.loads(row.line) for row in rows_of(run, []) if row.table is MEASUREMENTS)
            record_values: Counter[tuple[Any, ...]] = Counter(
                tuple(values.get(key) for key in keys) for values in measurements
            )
        except StoreFailure:
            continue  # reported as not compared
        day = rows.day_of(run.run_id)
        parameters = {"since": day, "day": day, "run": run.run_id}
        warehouse_values = Counter(tuple(row) for row in warehouse.query(sql, parameters).rows)
        if record_values != warehouse_values:
            example = next(iter((record_values - warehouse_values) or (warehouse_values - record_values)))
            lines.append(f"measurements, run {run.run_id}: values differ, for example {example}")
    return lines
