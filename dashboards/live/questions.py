"""The questions that dashboards answer: one query each in `queries/`, in BigQuery's dialect.

Every query takes @workload, @backend (each '' for all) and @since (the first day that is read); `trend` also takes
@cell. The views are part of the statement, so that @since bounds every scan of a table. The queries select findings
that `analysis` computed, and run unchanged on BigQuery and, transpiled, on the local warehouse.

Titles of works on a page of many runs: those that two works have in common name the settings that differ.

A run's findings name a work by what varies in that run, so that a work may have several titles, and works of two runs
the same one. The settings are read from the warehouse only then. Promise: after `with_titles` a work has one title,
that of its newest run if no other work has it, and the rows of two works never have one title.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from keras_matrix.analysis.comparison.titles import Labels, titles_of
from keras_matrix.records.identity import DEFAULTS, SETTINGS, parameter_key
from keras_matrix.uploader.sql import with_views
from keras_matrix.uploader.warehouse import QueryResult, Scalar

QUERIES = Path(__file__).parents[1] / "queries"
ORDER = (
    *("matrix", "comparison", "figures", "commands", "regressions", "trend"),
    *("first_epoch", "memory", "calls", "input_stalls", "device_scaling", "fc_scaling", "roofline"),
    *("failures", "machines", "runs"),
)
EARLIEST_DAY = "2000-01-01"
DEFAULT_DAYS = 90  # number of days that dashboards read from BigQuery, where each byte costs money
Row = Mapping[str, Any]
Identity = tuple[str, str]
LABELS = tuple(name for name in SETTINGS if name not in ("backend", "workload"))
CELLS = """
SELECT DISTINCT cell_id, workload, IF(params IS NULL, '{}', TO_JSON_STRING(params)) AS params, LABELS
FROM cells
WHERE source IS NULL AND day >= CAST(@since AS DATE) AND (@workload = '' OR workload = @workload)
""".replace("LABELS", ", ".join(LABELS))


class Reader(Protocol):
    """Answers queries: a warehouse, or a copy of one."""

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Answer one SELECT in BigQuery's dialect over the tables and views; @name is a parameter."""


@dataclass(frozen=True, slots=True)
class Question:
    """One query, with its title and the question that it answers."""

    name: str
    title: str
    asks: str
    sql: str


@dataclass(frozen=True, slots=True)
class DashboardFilter:
    """The filter of a dashboard; '' means no filter."""

    workload: str = ""
    backend: str = ""
    since: str = EARLIEST_DAY
    cell: str = ""

    def parameters(self, sql: str) -> Mapping[str, Scalar]:
        """Return the values of the parameters of a query."""
        values = {"workload": self.workload, "backend": self.backend, "since": self.since, "cell": self.cell}
        return {name: value for name, value in values.items() if f"@{name}" in sql}


def checked(choice: DashboardFilter) -> DashboardFilter:
    """Return the choice with its day in the format of SQL, such as 2026-01-31; all days if it is invalid."""
    try:
        since = date.fromisoformat(choice.since).isoformat()
    except ValueError:
        since = EARLIEST_DAY
    return replace(choice, since=since)


@cache
def questions() -> dict[str, Question]:
    """Return the questions by name, in the order of the page."""
    return {name: _question(name) for name in ORDER}


def answer(warehouse: Reader, question: Question, choice: DashboardFilter) -> QueryResult:
    """Return a question's rows. Raises `WarehouseFailure`."""
    return warehouse.query(question.sql, choice.parameters(question.sql))


def _question(name: str) -> Question:
    sql = (QUERIES / f"{name}.sql").read_text(encoding="utf-8")
    header = dict(line[3:].split(": ", 1) for line in sql.splitlines() if line.startswith("-- "))
    return Question(name, header["title"], header["asks"], with_views(sql))


def with_titles(warehouse: Reader, rows: Sequence[Row], choice: DashboardFilter) -> Sequence[Row]:
    """Return the rows of a question; works that have one title get others. Raises `WarehouseFailure`.

    Rows that are not of a cell, as those of runs, are returned as they are.
    """
    if not rows or not {"cell_id", "workload", "backend"} <= rows[0].keys():
        return rows
    column = "work" if "work" in rows[0] else "workload"
    works = {_identity(row): row for row in sorted(rows, key=lambda row: str(row.get("run_id") or ""))}
    titles = {key: str(row[column]) for key, row in works.items()}
    if ambiguous := _ambiguous(works.values(), column):
        titles |= _described(warehouse, {k: r for k, r in works.items() if r["workload"] in ambiguous}, choice)
    if all(row[column] == titles[_identity(row)] for row in rows):
        return rows
    return [{**row, column: titles[_identity(row)]} for row in rows]


def _described(warehouse: Reader, works: Mapping[Identity, Row], choice: DashboardFilter) -> dict[Identity, str]:
    """Return titles of works that name what differs between them; with an id where the settings are not known."""
    cell_rows = warehouse.query(CELLS, choice.parameters(CELLS)).dicts()
    cell_ids = {str(row["cell_id"]) for row in works.values()}
    labels = {str(row["cell_id"]): _labels(row) for row in cell_rows if row["cell_id"] in cell_ids}
    labelled_works = [(str(row["workload"]), labels.get(str(row["cell_id"]), {})) for row in works.values()]
    titles = dict(zip(works, map(str, titles_of(labelled_works, {})), strict=True))
    count_by_title = Counter((text, key[1]) for key, text in titles.items())
    return {key: text if count_by_title[text, key[1]] == 1 else f"{text} ({key[0]})" for key, text in titles.items()}


def _identity(row: Row) -> Identity:
    """Return the identity of a row's work; if the row has none, that of its cell, and the backend."""
    work = row.get("work_id")
    return (f"work {work}", "") if work else (f"cell {row['cell_id']}", str(row["backend"]))


def _ambiguous(works: Iterable[Row], column: str) -> set[str]:
    """Return the workloads of which two works have one title."""
    count_by_title = Counter((str(row[column]), _identity(row)[1]) for row in works)
    return {str(row["workload"]) for row in works if count_by_title[str(row[column]), _identity(row)[1]] > 1}


def _labels(row: Row) -> Labels:
    """Return the settings and parameters of a cell; a setting that a warehouse does not store has its default."""
    params = {parameter_key(name): value for name, value in json.loads(row["params"]).items()}
    return {**params, **{name: DEFAULTS[name] if row[name] is None else row[name] for name in LABELS}}
