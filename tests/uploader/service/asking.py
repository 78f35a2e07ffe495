"""The real client of the fake service, without the library's retries, so that errors are raised immediately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

PROJECT = "some-project"
ONCE: dict[str, Any] = {"retry": None, "timeout": 30}
MARKS = [
    pytest.mark.process,  # a server on the loopback
    pytest.mark.google_client,
]


def client(url: str, account: str | None = None) -> Any:
    """Return a client with an account; skip if Google's library is not installed."""
    reason = "google-cloud-bigquery is not installed: extra `bigquery`"
    bigquery = pytest.importorskip("google.cloud.bigquery", reason=reason)
    from google.auth.credentials import AnonymousCredentials

    options = {"api_endpoint": f"{url}/as/{account}" if account else url}
    return bigquery.Client(PROJECT, credentials=AnonymousCredentials(), client_options=options)


def start(asking: Any, sql: str, job_id: str | None = None, location: str | None = None, **config: Any) -> Any:
    """Return the job of a query, which may still run."""
    from google.cloud import bigquery

    given = bigquery.QueryJobConfig(**config)
    return asking.query(sql, job_config=given, job_id=job_id, location=location, job_retry=None, **ONCE)


def rows(job: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    return [tuple(row.values()) for row in job.result(job_retry=None, **ONCE)]


def ask(asking: Any, sql: str, **config: Any) -> list[tuple[Any, ...]]:
    """Return the answer of a query."""
    return rows(start(asking, sql, **config))


def load(asking: Any, table: str, lines: Sequence[dict[str, Any]], **config: Any) -> Any:
    """Return the job that loads rows into a table, with the schema of an existing one."""
    from google.cloud import bigquery

    given = bigquery.LoadJobConfig(**config)
    return asking.load_table_from_json(lines, table, job_config=given, num_retries=0, timeout=30)
