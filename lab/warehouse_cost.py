"""The cost of a year of nightly runs on BigQuery: storage, uploads and dashboard queries, at list prices.

    lab/run warehouse_cost [RESULTS]    each night as the newest run of a results folder (default: results)

Each cell of the run counts with REPEATS repeats, whatever the run has. Prints the tables of docs/lab/bigquery.md.
Sizes are BigQuery's logical ones (https://cloud.google.com/bigquery/pricing, "Data size calculation"), by which
on-demand queries and storage are billed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_matrix.dashboards.live.app.needed import needed
from keras_matrix.dashboards.live.questions import DEFAULT_DAYS, questions
from keras_matrix.records import findings
from keras_matrix.records.store import Results, Run
from keras_matrix.records.text import bytes_text
from keras_matrix.runner.service.stored import update_findings
from keras_matrix.uploader import rows
from keras_matrix.uploader.bigquery import jobs
from keras_matrix.uploader.bigquery.jobs import LEAST_BYTES
from keras_matrix.uploader.rows import WarehouseRow
from keras_matrix.uploader.schema import TABLES, ColumnMode, Table, TableColumn, Type
from tests.sessions import store_session

REPEATS = 5
NIGHTS = 365
WIDTHS = {Type.INT64: 8, Type.FLOAT64: 8, Type.DATE: 8, Type.TIMESTAMP: 8, Type.BOOL: 1}
STORAGE_USD_PER_GIB_MONTH = 0.02  # active logical storage in the US; the first 10 GiB are free
FREE_STORAGE_BYTES = 10 << 30
LARGER = 100
REFRESHES_A_DAY = 48  # of the live dashboard: every 10 minutes for 8 hours
LOOKS_A_DAY = 20  # at Grafana's overview, each asking every panel

Sizes = Counter[tuple[str, str]]


def main() -> None:
    """Print the tables."""
    newest = Results(Path(sys.argv[1] if len(sys.argv) > 1 else "results")).latest()
    if newest is None:
        sys.exit("error: RESULTS holds no run; measure with: runner --matrix matrix.yaml")
    with tempfile.TemporaryDirectory() as folder:
        night = night_of(newest, Path(folder))
        sizes, counts = sizes_of(night)
    cells = len({json.loads(row.line)["cell_id"] for row in night if row.table.name == "cells"})
    print(f"{cells} cells x {REPEATS} repeats a night, {NIGHTS} nights\n")
    print("| table | rows a night | bytes a night | bytes a year |\n|---|---|---|---|")
    for table in TABLES:
        total = sum(size for (name, _), size in sizes.items() if name == table.name)
        a_night, a_year = bytes_text(total), bytes_text(total * NIGHTS)
        print(f"| `{table.name}` | {counts[table.name]:,} | {a_night} | {a_year} |")
    larger = Sizes({column: size * LARGER for column, size in sizes.items()})
    print(
        f"\n| what | billed a year | list price | with {LARGER} times the cells | list price |\n|---|---|---|---|---|"
    )
    for (cost_name, *small_cells), (_, *many) in zip(costs(sizes), costs(larger), strict=True):
        print(f"| {' | '.join((cost_name, *small_cells, *many))} |")


def night_of(run: Run, folder: Path) -> list[WarehouseRow]:
    """Return the rows of a run with as many repeats of each cell as a night has."""
    first = {record.cell_id: record for record in run.load()[0]}
    records = [replace(record, repeat=number) for record in first.values() for number in range(REPEATS)]
    about = {name: value for name, value in run.about().items() if name not in ("run_id", "version")}
    copy = Run(store_session(folder, run.run_id, records, **about))
    update_findings(copy)
    run_findings = findings.load(copy)
    night_rows: list[WarehouseRow] = [rows.of_run(copy.run_id, run.about())]
    night_rows += [row for record in records for row in rows.of_record(record)]
    return night_rows + (list(rows.of_findings(run_findings)) if run_findings is not None else [])


def sizes_of(night: Iterable[WarehouseRow]) -> tuple[Sizes, Counter[str]]:
    """Return the logical bytes of each column, and the rows of each table."""
    sizes, counts = Sizes(), Counter[str]()
    for row in night:
        counts[row.table.name] += 1
        values = json.loads(row.line)
        for column in row.table.columns:
            sizes[row.table.name, column.name] += width(column, values.get(column.name))
    return sizes, counts


def width(column: TableColumn, value: Any) -> int:
    """Return a value's logical bytes: 2 and the UTF-8 of a text, the text of JSON, 0 for null, the sum of an array."""
    if value is None:
        return 0
    if column.mode is ColumnMode.REPEATED:
        return sum(width(replace(column, mode=ColumnMode.NULLABLE), entry) for entry in value)
    if column.type is Type.JSON:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    return WIDTHS[column.type] if column.type in WIDTHS else 2 + len(str(value).encode())


def columns_read(sql: str) -> set[tuple[str, str]]:
    """Return the columns of the project's tables that a query reads."""
    return {(table, column) for table, columns in needed([sql]).columns.items() for column in columns}


def costs(sizes: Sizes) -> Iterator[tuple[str, str, str]]:
    """Yield each billed item, its bytes in a year, and their price."""
    stored = sum(sizes.values()) * NIGHTS
    held_gib = max(0, stored - FREE_STORAGE_BYTES) / 2**30
    yield "storage after a year", bytes_text(stored), jobs.usd(held_gib * 12 * STORAGE_USD_PER_GIB_MONTH)
    yield "load jobs", "free", jobs.usd(0)
    yield _row("an upload a night, a batch for each table", sum(_batch(sizes, table) for table in TABLES) * NIGHTS)
    read = [columns_read(question.sql) for question in questions().values()]
    snapshot = sum(
        _billed(sizes, {column for columns in read for column in columns if column[0] == name}) for name in SNAPSHOT
    )
    yield _row(f"the live dashboard, {REFRESHES_A_DAY} refreshes a day", snapshot * REFRESHES_A_DAY * NIGHTS)
    panels = sum(_billed(sizes, columns) for columns in read)
    yield _row(f"Grafana, {LOOKS_A_DAY} times every panel a day", panels * LOOKS_A_DAY * NIGHTS)


SNAPSHOT = ("runs", "cells", "findings")


def _billed(sizes: Sizes, columns: set[tuple[str, str]]) -> int:
    """Return the bytes billed for reading columns of the last DEFAULT_DAYS nights."""
    read = sum(sizes[column] for column in columns) * DEFAULT_DAYS
    return jobs.billed(read, len({table for table, _ in columns}))


def _batch(sizes: Sizes, table: Table) -> int:
    """Return the bytes billed for adding a night's rows to a table: the statements of
    `uploader.bigquery.ddl.insert_missing`.

    They update the lease; insert rows of the staging table whose keys of that day are missing; count both again.
    """
    rows_of_night = sum(size for (name, _), size in sizes.items() if name == table.name)
    keys = sum(sizes[table.name, name] for name in ("day", *table.key))
    return LEAST_BYTES + sum(max(LEAST_BYTES, read) for read in (rows_of_night, keys, keys, keys))


def _row(action: str, billed: int) -> tuple[str, str, str]:
    return action, bytes_text(billed), jobs.usd(jobs.cost_usd(billed))


if __name__ == "__main__":
    main()
