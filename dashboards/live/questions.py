"""The questions that dashboards answer: one query each in `queries/`, in BigQuery's dialect.

Every query takes @workload, @backend (each '' for all) and @since (the first day that is read); `trend` also takes
@cell. The views are part of the statement, so that @since bounds every scan of a table. The queries select findings
that `analysis` computed, and run unchanged on BigQuery and, transpiled, on the local warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Protocol

from keras_matrix.uploader.sql import with_views
from keras_matrix.uploader.warehouse import QueryResult, Scalar

QUERIES = Path(__file__).parents[1] / "queries"
ORDER = (
    *("matrix", "comparison", "figures", "commands", "regressions", "trend"),
    *("first_epoch", "memory", "input_stalls", "device_scaling", "fc_scaling", "roofline"),
    *("failures", "machines", "runs"),
)
EARLIEST_DAY = "2000-01-01"
DEFAULT_DAYS = 90  # number of days that dashboards read from BigQuery, where each byte costs money


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
        given = {"workload": self.workload, "backend": self.backend, "since": self.since, "cell": self.cell}
        return {name: value for name, value in given.items() if f"@{name}" in sql}


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
