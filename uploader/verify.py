"""Whether the warehouse holds what the records say: rows counted, doubled keys, and sums of row hashes, run by run.

A hash covers every value of its row as it was sent, so that equal counts and sums mean that the same rows are there.
`values=True` reads the measurements back too and compares each figure, which also shows a warehouse that changed one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from records import findings
from records.store import Results, Run, StoreFailure
from uploader import rows
from uploader.rows import Row
from uploader.schema import MEASUREMENTS, TABLES, Table
from uploader.warehouse import Warehouse

MOST_TOLD = 20


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of one run in one table: how many, and the sum of their hashes."""

    rows: int
    hashes: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared, and what differs, one line each. `foreign` rows are of no record here."""

    expected: int
    found: int
    foreign: int
    problems: tuple[str, ...]


def verify(results: Results, warehouse: Warehouse, *, values: bool = False) -> Verified:
    """Compare the warehouse with the records of a results folder."""
    wanted, unread = _expected(results)
    problems: list[str] = []
    expected = found = foreign = 0
    for table in TABLES:
        there, ours = _there(warehouse, table), wanted[table.name]
        problems += _differing(table, ours, there)
        problems += _doubled(warehouse, table)
        expected += sum(held.rows for held in ours.values())
        found += sum(held.rows for held in there.values())
        foreign += sum(held.rows for run_id, held in there.items() if run_id not in ours)
    if values:
        problems += _values(results, warehouse)
    return Verified(expected, found, foreign, (*problems, *unread))


def _expected(results: Results) -> tuple[dict[str, dict[str, Held]], list[str]]:
    counted: dict[str, dict[str, Held]] = {table.name: {} for table in TABLES}
    unread: list[str] = []
    for run in results.runs():
        try:
            for row in _rows(run, unread):
                before = counted[row.table.name].get(run.run_id, Held(0, 0))
                added = Held(before.rows + 1, before.hashes + _hash(row.line))
                counted[row.table.name][run.run_id] = added
        except StoreFailure as error:
            unread.append(f"not compared: {error}")
    return counted, unread


def _rows(run: Run, unread: list[str]) -> Iterator[Row]:
    """Yield what a run makes; records that cannot be read are added to `unread`. Raises `StoreFailure`."""
    yield rows.of_run(run.run_id, run.about())
    records, problems = run.load()
    unread += [f"not compared: {problem.path}: {problem.reason}" for problem in problems]
    for record in records:
        yield from rows.of_record(record)
    if (found := findings.load(run)) is not None:
        yield from rows.of_findings(found)


def _hash(line: str) -> int:
    return int(line[line.rindex(":") + 1 : -1])


def _there(warehouse: Warehouse, table: Table) -> dict[str, Held]:
    # Earlier revisions of a run's findings stay; the last one is what the records' folder holds.
    source = "latest_findings" if table.name == "findings" else table.name
    sql = f"SELECT run_id, COUNT(*) AS n, SUM(row_hash) AS hashes FROM {source} GROUP BY run_id"
    return {run_id: Held(int(n), int(hashes)) for run_id, n, hashes in warehouse.query(sql).rows}


def _differing(table: Table, ours: Mapping[str, Held], there: Mapping[str, Held]) -> list[str]:
    told = []
    for run_id, want in ours.items():
        have = there.get(run_id, Held(0, 0))
        if have.rows != want.rows:
            told.append(f"{table.name}, run {run_id}: {have.rows} rows, the records make {want.rows}")
        elif have.hashes != want.hashes:
            told.append(f"{table.name}, run {run_id}: as many rows, but not the same")
    more = [f"{table.name}: {len(told) - MOST_TOLD} runs more"] if len(told) > MOST_TOLD else []
    return told[:MOST_TOLD] + more


def _doubled(warehouse: Warehouse, table: Table) -> list[str]:
    keys = ", ".join(table.key)
    sql = f"SELECT COUNT(*) AS n FROM (SELECT {keys} FROM {table.name} GROUP BY {keys} HAVING COUNT(*) > 1) AS doubled"
    count = int(warehouse.query(sql).rows[0][0])
    return [f"{table.name}: {count} keys stand there more than once"] if count else []


def _values(results: Results, warehouse: Warehouse) -> list[str]:
    """Compare every measurement, run by run."""
    keys = ("run_id", "cell_id", "repeat", "attempt", "metric", "step", "value", "unit")
    sql = f"SELECT {', '.join(keys)} FROM measurements WHERE run_id = @run"
    told = []
    for run in results.runs():
        try:
            lines = (json.loads(row.line) for row in _rows(run, []) if row.table is MEASUREMENTS)
            ours: Counter[tuple[Any, ...]] = Counter(tuple(values.get(key) for key in keys) for values in lines)
        except StoreFailure:
            continue  # told already
        there = Counter(tuple(row) for row in warehouse.query(sql, {"run": run.run_id}).rows)
        if ours != there:
            example = next(iter((ours - there) or (there - ours)))
            told.append(f"measurements, run {run.run_id}: values differ, first {example}")
    return told
