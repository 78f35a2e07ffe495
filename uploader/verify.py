"""Whether the warehouse has what the records say: rows counted, doubled keys, and sums of row hashes, run by run.

A hash covers every value of its row as it was sent, so that equal counts and sums mean that the same rows are there.
`values=True` reads the measurements back too and compares each figure, which also shows a warehouse that changed one.
Every query is bounded by the day of the oldest run that is compared. Runs from before what the warehouse keeps are left
out. Not compared: rows without a record in the results folder, such as imported ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from records import findings
from records.store import Results, Run, StoreFailure
from uploader import rows
from uploader.rows import Row
from uploader.schema import BY_NAME, FINDINGS, MEASUREMENTS, RUNS, TABLES, Table
from uploader.warehouse import Warehouse

MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of one run in one table: how many, and the sum of their hashes."""

    rows: int = 0
    hashes: int = 0


Holdings = Mapping[str, Mapping[str, Held]]  # by table and run


@dataclass(frozen=True, slots=True)
class Difference:
    """A run whose rows in one table are not those that its records make."""

    table: Table
    run_id: str
    want: Held
    have: Held

    @property
    def missing(self) -> int:
        """How many rows are missing at least."""
        return max(0, self.want.rows - self.have.rows)

    def __str__(self) -> str:
        place = f"{self.table.name}, run {self.run_id}"
        if self.have.rows == self.want.rows:
            return f"{place}: as many rows, but not the same"
        return f"{place}: {self.have.rows} rows, the records make {self.want.rows}"


@dataclass(slots=True)
class Expected:
    """What the records make. `partial` are runs with records that cannot be read; `unread` says which, and why.

    `expired` are runs from before what the warehouse keeps; `since` is the day of the oldest run that is compared, None
    if there is no run.
    """

    rows: dict[str, dict[str, Held]] = field(default_factory=lambda: {table.name: {} for table in TABLES})
    partial: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    since: str | None = None
    kept_from: str | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and what differs, one line each. `foreign` rows are of no record here.

    `runs` are the runs with records that were compared, `missing` counts rows, `expired` runs from before what the
    warehouse keeps, which are left out.
    """

    expected: int
    found: int
    foreign: int
    problems: tuple[str, ...]
    runs: int = 0
    missing: int = 0
    expired: int = 0


def verify(results: Results, warehouse: Warehouse, *, values: bool = False) -> Verified:
    """Compare the warehouse with the records of a results folder."""
    wanted = expected(results, warehouse.kept_from())
    there = holdings(warehouse, wanted.since)
    differing = differences(wanted, there)
    problems = [*listed(differing), *doubled(warehouse, wanted.since)]
    if values:
        problems += _values(results, warehouse)
    return Verified(
        _total(wanted.rows),
        _total(there),
        _total(_foreign(wanted, there)),
        (*problems, *wanted.unread),
        len(wanted.rows[RUNS.name]),
        sum(one.missing for one in differing),
        len(wanted.expired),
    )


def expected(results: Results, kept_from: str | None = None) -> Expected:
    """Return what the records of a results folder make."""
    made = Expected(kept_from=kept_from)
    for run in results.runs():
        if rows.expired(run.run_id, kept_from):
            made.expired.append(run.run_id)
            continue
        made.since = made.since or rows.day_of(run.run_id)
        before = len(made.unread)
        try:
            for row in rows_of(run, made.unread):
                counted = made.rows[row.table.name].get(run.run_id, Held())
                made.rows[row.table.name][run.run_id] = Held(counted.rows + 1, counted.hashes + _hash(row.line))
        except StoreFailure as error:
            made.unread.append(f"not compared: {error}")
        if len(made.unread) > before:
            made.partial.add(run.run_id)
    return made


def rows_of(run: Run, unread: list[str]) -> Iterator[Row]:
    """Yield what a run makes; records that cannot be read are added to `unread`. Raises `StoreFailure`."""
    yield rows.of_run(run.run_id, run.about())
    records, problems = run.load()
    unread += [f"not compared: {problem.path}: {problem.reason}" for problem in problems]
    for record in records:
        yield from rows.of_record(record)
    if (found := findings.load(run)) is not None:
        yield from rows.of_findings(found)


def holdings(warehouse: Warehouse, since: str | None) -> Holdings:
    """Return what a warehouse has of each run from a day on; nothing is asked without one."""
    return {} if since is None else {table.name: _there(warehouse, table, since) for table in TABLES}


def attempts(warehouse: Warehouse, table: Table, since: str) -> dict[str, int]:
    """Return how many attempts of each run have a row in a table, from a day on."""
    sql = (
        f"SELECT run_id, COUNT(*) AS n FROM (SELECT DISTINCT run_id, cell_id, repeat, attempt FROM {table.name} "
        "WHERE day >= CAST(@since AS DATE)) AS attempts GROUP BY run_id"
    )
    return {str(run_id): int(n) for run_id, n in warehouse.query(sql, {"since": since}).rows}


def differences(wanted: Expected, there: Holdings) -> list[Difference]:
    """Return the runs that differ. Of one whose records cannot all be read, rows beyond those that can are expected."""
    found = []
    for name, runs in wanted.rows.items():
        for run_id, want in runs.items():
            have = there.get(name, {}).get(run_id, Held())
            unknown = run_id in wanted.partial and have.rows >= want.rows
            if have != want and not unknown:
                found.append(Difference(BY_NAME[name], run_id, want, have))
    return found


def listed(found: list[Difference]) -> list[str]:
    """Return a line for each difference; of many in a table the first ones, and how many more there are."""
    lines = []
    for table in TABLES:
        own = [str(one) for one in found if one.table is table]
        more = len(own) - MOST_LISTED
        lines += own[:MOST_LISTED] + ([f"{table.name}: {more} runs more"] if more > 0 else [])
    return lines


def doubled(warehouse: Warehouse, since: str | None) -> list[str]:
    """Return a line for each table and run with keys that are there more than once."""
    lines = []
    for table in TABLES if since is not None else ():
        keys = ", ".join(table.key)
        sql = (
            f"SELECT run_id, COUNT(*) AS n FROM (SELECT {keys} FROM {table.name} WHERE day >= CAST(@since AS DATE) "
            f"GROUP BY {keys} HAVING COUNT(*) > 1) AS doubled GROUP BY run_id ORDER BY run_id"
        )
        found = warehouse.query(sql, {"since": since or ""}).rows
        lines += [f"{table.name}, run {run_id}: {n} keys are there more than once" for run_id, n in found[:MOST_LISTED]]
        if (more := len(found) - MOST_LISTED) > 0:
            lines.append(f"{table.name}: {more} runs more with such keys")
    return lines


def _total(held: Holdings) -> int:
    return sum(one.rows for runs in held.values() for one in runs.values())


def _foreign(wanted: Expected, there: Holdings) -> Holdings:
    return {
        name: {run_id: held for run_id, held in runs.items() if run_id not in wanted.rows[name]}
        for name, runs in there.items()
    }


def _hash(line: str) -> int:
    return int(line[line.rindex(":") + 1 : -1])


def _there(warehouse: Warehouse, table: Table, since: str) -> dict[str, Held]:
    """Return a table's rows by run; of findings those of each run's last revision, which its folder has."""
    last = ""
    if table is FINDINGS:
        last = (
            "JOIN (SELECT run_id, MAX(revision) AS revision FROM findings WHERE day >= CAST(@since AS DATE) "
            "GROUP BY run_id) AS last ON last.run_id = t.run_id AND last.revision = t.revision "
        )
    sql = (
        f"SELECT t.run_id, COUNT(*) AS n, SUM(t.row_hash) AS hashes FROM {table.name} AS t {last}"
        "WHERE t.day >= CAST(@since AS DATE) GROUP BY t.run_id"
    )
    return {run_id: Held(int(n), int(hashes)) for run_id, n, hashes in warehouse.query(sql, {"since": since}).rows}


def _values(results: Results, warehouse: Warehouse) -> list[str]:
    """Compare every measurement, run by run."""
    keys = ("run_id", "cell_id", "repeat", "attempt", "metric", "step", "value", "unit")
    # @since bounds the scan of an append-only dataset, too, whose `measurements` is a view.
    sql = (
        f"SELECT {', '.join(keys)} FROM measurements "
        "WHERE day >= CAST(@since AS DATE) AND day = CAST(@day AS DATE) AND run_id = @run"
    )
    kept_from, lines = warehouse.kept_from(), []
    for run in results.runs():
        if rows.expired(run.run_id, kept_from):
            continue
        try:
            made = (json.loads(row.line) for row in rows_of(run, []) if row.table is MEASUREMENTS)
            ours: Counter[tuple[Any, ...]] = Counter(tuple(values.get(key) for key in keys) for values in made)
        except StoreFailure:
            continue  # reported as not compared
        day = rows.day_of(run.run_id)
        asked = {"since": day, "day": day, "run": run.run_id}
        there = Counter(tuple(row) for row in warehouse.query(sql, asked).rows)
        if ours != there:
            example = next(iter((ours - there) or (there - ours)))
            lines.append(f"measurements, run {run.run_id}: values differ, first {example}")
    return lines
