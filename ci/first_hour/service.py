"""Two datasets as Google's own client sees them, independently of the uploader's warehouse classes.

Methods raise the client's exceptions. `as_upload_errors` converts these to errors of `uploader.errors`, whose messages
say what to do and contain no credential.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from ci.first_hour.costs import QueryCost, days_text
from ci.first_hour.results import Key
from keras_matrix.uploader.bigquery import error_mapping
from keras_matrix.uploader.bigquery.client import EMULATOR, check
from keras_matrix.uploader.errors import BadInput, UploadError
from keras_matrix.uploader.schema import Table
from keras_matrix.uploader.warehouse import Options, Scalar

SCOPE = "https://www.googleapis.com/auth/bigquery"
LABELS = {"program": "keras-benchmark-matrix"}
MADE_BY = {"made-by": "keras-benchmark-first-hour"}
NEEDED = ("bigquery.tables.get", "bigquery.tables.getData", "bigquery.tables.updateData")
CALL_S = 60.0
RETRIED_S = 30.0
JOB_S = 600.0
APPEND_ONLY, WITH_DML = "append-only", "with DML"
DAY_MS = 24 * 3600 * 1000
TYPES: Mapping[type, str] = {bool: "BOOL", int: "INT64", float: "FLOAT64", str: "STRING"}


@dataclass(frozen=True, slots=True)
class Expiry:
    """Days after which new tables and partitions of a dataset expire (None: never), and tables that expire."""

    tables_days: float | None
    partitions_days: float | None
    expiring: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """Reads one dataset and its staging dataset from BigQuery or the emulator of BIGQUERY_EMULATOR_HOST."""

    client: Any
    dataset: str  # PROJECT.DATASET
    most_bytes_billed: int

    @property
    def datasets(self) -> tuple[str, str]:
        """The names of the dataset and of the staging dataset."""
        return self.dataset, f"{self.dataset}_staging"

    @property
    def emulator(self) -> str | None:
        """The emulator's address; None for Google's BigQuery."""
        return os.environ.get(EMULATOR) or None

    def there(self) -> dict[str, Any]:
        """Return the existing datasets by name."""
        from google.api_core.exceptions import NotFound

        datasets = {}
        for name in self.datasets:
            with suppress(NotFound):
                datasets[name] = self.client.get_dataset(name, **_call())
        return datasets

    def mark(self, *, made_here: bool) -> None:
        """Add or remove the label that marks the datasets as created by this command, which may then remove them."""
        for dataset in self.there().values():
            dataset.labels = {**(dataset.labels or {}), **dict.fromkeys(MADE_BY), **(MADE_BY if made_here else {})}
            self.client.update_dataset(dataset, ["labels"], **_call())

    def drop(self) -> list[str]:
        """Remove both datasets with their tables; return those that still exist."""
        for name in self.datasets:
            self.client.delete_dataset(name, delete_contents=True, not_found_ok=True, **_call())
        return sorted(self.there())

    def keys(self, table: Table, days: tuple[str, str]) -> Counter[Key]:
        """Return the number of rows of each key and row hash in a table, from the first to the last day."""
        names = ", ".join((*table.key, "row_hash"))
        sql = f"SELECT {names} FROM {table.name} WHERE day BETWEEN DATE '{days[0]}' AND DATE '{days[1]}'"
        return Counter(tuple(row.values()) for row in self._run(sql).result(timeout=JOB_S))

    def delete(self, table: str, run_id: str, day: str) -> int:
        """Delete the rows of one run from a table by DML; return how many."""
        job = self._run(f"DELETE FROM {table} WHERE day = DATE '{day}' AND run_id = @run", {"run": run_id})
        job.result(timeout=JOB_S)
        return int(job.num_dml_affected_rows or 0)

    def cost(self, name: str, sql: str, parameters: Mapping[str, Scalar]) -> QueryCost:
        """Run a query without cache, and return its bytes and those of its dry run."""
        estimate = self._run(sql, parameters, dry_run=True)
        began = time.monotonic()
        job = self._run(sql, parameters)
        rows = sum(1 for _ in job.result(timeout=JOB_S))
        duration_s = time.monotonic() - began
        read = (estimate.total_bytes_processed, job.total_bytes_processed, job.total_bytes_billed)
        return QueryCost(name, rows, duration_s, *map(self._reported, read))

    def expiry(self) -> Expiry:
        """Return the expirations of the first dataset."""
        dataset = self.client.get_dataset(self.dataset, **_call())
        return Expiry(
            _days(dataset.default_table_expiration_ms),
            _days(dataset.default_partition_expiration_ms),
            tuple(self._expiring()),
        )

    def staging_days(self) -> float | None:
        """Return the days until a staging table expires, infinity for never; None without a staging dataset."""
        staging = self.there().get(self.datasets[1])
        return None if staging is None else _days(staging.default_table_expiration_ms) or math.inf

    def retained_from(self) -> str | None:
        """Return the first day whose partition has not expired; None if partitions never expire."""
        limits = [_days(table.time_partitioning.expiration_ms) for table in self._tables() if table.time_partitioning]
        shortest = min((days for days in limits if days is not None), default=None)
        if shortest is None:
            return None
        expired = (datetime.now(UTC) - timedelta(days=shortest)).date()
        return (expired + timedelta(days=1)).isoformat()

    def mode(self, table: Table) -> str:
        """Return the mode of the dataset: append-only if a table's name is a view."""
        stored_table = self.client.get_table(f"{self.dataset}.{table.name}", **_call())
        return APPEND_ONLY if stored_table.table_type == "VIEW" else WITH_DML

    def locations(self) -> list[str | None]:
        """Return the location of each dataset; None if the service does not report it."""
        locations = [dataset.location for dataset in self.there().values()]
        return [str(location) if location not in (None, "None") else None for location in locations]

    def rights(self, table: str) -> list[str] | None:
        """Return which required permissions the account has on a table; None if the service does not report them."""
        from google.api_core.exceptions import GoogleAPICallError

        try:
            stored_table = self.client.get_table(f"{self.dataset}.{table}", **_call())
            granted = self.client.test_iam_permissions(stored_table, list(NEEDED), **_call()).get("permissions", [])
        except GoogleAPICallError:
            return None
        return sorted(set(NEEDED) & set(granted))

    def account(self) -> str | None:
        """Return the account of the jobs; None if the service does not report it."""
        return self._run("SELECT 1 AS one").user_email or None

    def jobs(self, since: datetime) -> list[Any]:
        """Return the jobs of this program since a time, newest first."""
        jobs = self.client.list_jobs(min_creation_time=since, **_call())
        return [job for job in jobs if (job.labels or {}).get("program") == LABELS["program"]]

    def _run(self, sql: str, parameters: Mapping[str, Scalar] | None = None, *, dry_run: bool = False) -> Any:
        """Start a statement and return its job; a dry run is complete immediately."""
        from google.cloud import bigquery

        config = bigquery.QueryJobConfig(
            default_dataset=self.dataset,
            dry_run=dry_run,
            use_query_cache=False,
            maximum_bytes_billed=self.most_bytes_billed,
            labels=LABELS,
            query_parameters=[
                bigquery.ScalarQueryParameter(name, TYPES[type(value)], value)
                for name, value in (parameters or {}).items()
            ],
        )
        return self.client.query(sql, job_config=config)

    def _tables(self) -> Iterator[Any]:
        for item in self.client.list_tables(self.dataset, **_call()):
            yield self.client.get_table(item.reference, **_call())

    def _expiring(self) -> Iterator[str]:
        for table in self._tables():
            if table.expires is not None:
                yield f"{table.table_id} expires on {table.expires:%Y-%m-%d}"
            if table.time_partitioning and table.time_partitioning.expiration_ms:
                days = table.time_partitioning.expiration_ms / DAY_MS
                yield f"partitions of {table.table_id} expire after {days_text(days)}"

    def _reported(self, count: int | None) -> int | None:
        """Return a number of bytes; None if the service does not report it: an emulator always reports 0."""
        return None if count is None or (self.emulator and count == 0) else int(count)


def opened(project: str, dataset: str, options: Options) -> Service:
    """Check the connection and open a dataset. Raises `BadInput`, `Unreachable` or `NotAllowed`."""
    check()
    return Service(plain_client(project, options), f"{project}.{dataset}", options.most_bytes_billed)


def _call() -> dict[str, Any]:
    """Return the arguments of a request that may be repeated: services close idle connections between two steps."""
    from google.cloud.bigquery import DEFAULT_RETRY

    return {"retry": DEFAULT_RETRY.with_timeout(RETRIED_S), "timeout": CALL_S}


def plain_client(project: str, options: Options) -> Any:
    """Return Google's client with Application Default Credentials, anonymous for the emulator."""
    try:
        from google.auth import credentials, default, impersonated_credentials
        from google.cloud import bigquery
    except ImportError as error:
        raise BadInput("ci/bigquery needs the extra `bigquery`: pip install '.[bigquery]'") from error
    if os.environ.get(EMULATOR):
        chosen_credentials: Any = credentials.AnonymousCredentials()
    else:
        chosen_credentials, _ = default(scopes=[SCOPE])
        if options.impersonate is not None:
            chosen_credentials = impersonated_credentials.Credentials(chosen_credentials, options.impersonate, [SCOPE])
    return bigquery.Client(project, credentials=chosen_credentials, location=options.location)


def require_unused(service: Service) -> list[str]:
    """Return existing datasets of an interrupted run of this command. Raises `BadInput` for any other dataset."""
    datasets = service.there()
    mark = MADE_BY.items()
    if foreign := [name for name, dataset in datasets.items() if not mark <= (dataset.labels or {}).items()]:
        raise BadInput(
            f"--dataset: {foreign[0]} exists and was not created by this command, which removes its datasets at the "
            "end; name one that does not exist"
        )
    return sorted(datasets)


def today() -> date:
    """Return today's date, UTC."""
    return datetime.now(UTC).date()


def _days(limit_ms: int | str | None) -> float | None:
    return None if not limit_ms else int(limit_ms) / DAY_MS


@contextmanager
def as_upload_errors(doing: str) -> Iterator[None]:
    """Convert the client's exceptions to errors of the uploader."""
    try:
        yield
    except UploadError:
        raise
    except error_mapping.client_errors() as error:
        raise error_mapping.to_upload_error(doing, error) from None
