"""The BigQuery warehouse: inserts the rows of a batch whose keys are missing in the table.

A dataset is created in one of two modes, which every command detects:

    with DML (the default)   a load job fills a staging table for the batch, one transaction inserts the rows whose keys
                             are missing in the table (`uploader.bigquery.ddl`), the staging table is
                             dropped
    append-only              for projects without DML (the sandbox): the existing keys of `<table>_appended` are read, a
                             load job appends the other lines, and `<table>` is a view with one row per key

Staging tables are in a second dataset, `<dataset>_staging`, and expire within a day. Credentials are Application
Default Credentials, workload identity or impersonation. Google's libraries are imported only when a warehouse is
opened.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from keras_matrix.uploader.bigquery import ddl, error_mapping
from keras_matrix.uploader.bigquery.jobs import REQUEST_S, UPLOAD_S, Jobs
from keras_matrix.uploader.bigquery.partition_pruning import push_down_day_filters
from keras_matrix.uploader.errors import BadInput, RowsRefused, SchemaMismatch, Unreachable, WarehouseFailure
from keras_matrix.uploader.outbox import Batch
from keras_matrix.uploader.schema import TABLES, ColumnMode, Table, TableColumn
from keras_matrix.uploader.sql import parsed
from keras_matrix.uploader.warehouse import Actual, Options, QueryResult, RowHashes, Scalar, read_row_hashes

if TYPE_CHECKING:
    from google.cloud import bigquery

DROP_S = 10.0
DAY_MS = 24 * 3600 * 1000
PARAMETER_TYPES = {bool: "BOOL", int: "INT64", float: "FLOAT64", str: "STRING"}
LABELS = {"program": "keras-benchmark-matrix"}


class BigQueryWarehouse:
    """A dataset and its dataset for staging tables."""

    def __init__(self, jobs: Jobs, dataset: str, options: Options) -> None:
        """Use the client of `jobs`, which belongs to one project."""
        self._jobs, self._client = jobs, jobs.client
        self._dataset = f"{self._client.project}.{dataset}"
        self._staging = f"{self._dataset}_staging"
        self._options = options
        self._compared: dict[str, Any] = {}  # tables by name as returned by `actual`, until a batch is added

    @property
    def address(self) -> str:
        """The address, bigquery://PROJECT.DATASET."""
        return f"bigquery://{self._dataset}"

    def create(self) -> list[str]:
        """Create missing datasets and tables, and create or replace the views."""
        created = self._create_datasets()
        for table in TABLES:
            if self.actual(table) is None:
                self._run(f"create {table.name}", ddl.create_table(self._dataset, table, self._suffix))
                created.append(f"table {table.name}{self._suffix}")
        if self.append_only:
            for table in TABLES:
                self._replace_view(table.name, ddl.deduplicating_view(self._dataset, table))
        else:
            created += self._create_lease()
        sql_by_view = ddl.create_views(self._dataset, self._options.first_day, append_only=self.append_only)
        for view_name, sql in sql_by_view.items():
            self._replace_view(view_name, sql)
            created.append(f"view {view_name}")
        return created

    def actual(self, table: Table) -> Actual | None:
        """Return the type and mode of each column of a table; None if it is missing."""
        stored_table = self._compared[table.name] = self._find(self._id(table))
        return (
            None
            if stored_table is None
            else {field.name: (field.field_type, field.mode) for field in stored_table.schema}
        )

    def add_columns(self, table: Table, columns: Sequence[TableColumn]) -> None:
        """Add columns, as NULLABLE or REPEATED."""
        stored_table = self._find(self._id(table))
        if stored_table is None:
            raise SchemaMismatch(f"{self._id(table)}: is missing; create it with: uploader init --to {self.address}")
        stored_table.schema = [*stored_table.schema, *(_field(column) for column in columns)]
        self._jobs.request(
            f"add columns to {table.name}",
            lambda: self._client.update_table(stored_table, ["schema"], **self._jobs.call()),
        )

    def merge(self, batch: Batch) -> int:
        """Add the rows of a batch that are missing in the table; return how many."""
        self._compared.clear()  # the row counts in it become outdated
        return self._append(batch) if self.append_only else self._insert(batch)

    def retained_from(self) -> str | None:
        """Return the first day whose partitions have not expired, such as 2026-01-31; None if partitions never do."""
        return self._retained_from

    def is_empty(self) -> bool:
        """Return whether no table has a row, from the tables' metadata, which is free to read."""
        return not any(table.num_rows for table in self._existing())

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> QueryResult:
        """Run a SELECT and return its result."""
        try:
            return self._select("query", self._pruned(sql), _scalars(parameters))
        except RowsRefused as error:
            raise WarehouseFailure(str(error)) from error

    def row_hashes(self, table: Table, days: tuple[str, str]) -> RowHashes:
        """Return the hash of each row of a table from a first to a last day, by its key."""
        return read_row_hashes(self, table, days)

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return how many bytes a query would read, from a dry run, which is free."""
        config = self._config(_scalars(parameters))
        config.dry_run, config.use_query_cache = True, False
        sql = self._pruned(sql)
        try:
            job = self._jobs.request("dry run", lambda: self._start_query(sql, config, None))
        except RowsRefused as error:
            raise WarehouseFailure(str(error)) from error
        return int(job.total_bytes_processed or 0)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @cached_property
    def _location(self) -> str | None:
        """The location of the dataset, or the one to create it in. Raises `BadInput` if --location differs from it."""
        requested = self._options.location
        dataset = self._find_dataset(self._dataset)
        if dataset is None:
            return requested
        if requested is not None and requested.casefold() != str(dataset.location).casefold():
            raise BadInput(f"--location: {self._dataset} is in {dataset.location}, got {requested!r}; omit the flag")
        return str(dataset.location)

    def _pruned(self, sql: str) -> str:
        """Return a query, for an append-only dataset with its day filters pushed down. Raises `BadInput`."""
        parsed(sql)  # raises `BadInput` unless it is a single SELECT
        return push_down_day_filters(sql) if "@since" in sql and self.append_only else sql

    @cached_property
    def append_only(self) -> bool:
        """Whether the dataset is, or will be created, without DML. Raises `BadInput` for a wrong flag."""
        requested = self._options.append_only
        table = TABLES[0].name
        stored_table = self._find(f"{self._dataset}.{table}")
        if stored_table is None:
            return requested or self._find(f"{self._dataset}.{table}{ddl.APPENDED}") is not None
        if stored_table.table_type == "VIEW":
            return True
        if requested:
            raise BadInput(
                f"--append-only: {self._dataset} was created without it and uses DML; omit the flag, or name another "
                "dataset"
            )
        return False

    @cached_property
    def _retained_from(self) -> str | None:
        """The first day whose partitions have expired in no table."""
        partitionings = [table.time_partitioning for table in self._existing()]
        limits_ms = [
            int(partitioning.expiration_ms)
            for partitioning in partitionings
            if partitioning is not None and partitioning.expiration_ms
        ]
        if not limits_ms:
            return None
        [[day]] = self._select("read-last-day-expired", ddl.last_day_expired(min(limits_ms))).rows
        retained: date = day + timedelta(days=1)
        return retained.isoformat()

    @cached_property
    def _ready(self) -> str:
        """The dataset for staging tables. Raises `SchemaMismatch` if no batch can be inserted."""
        advice = f"create it with: uploader init --to {self.address}"
        if self._find(f"{self._dataset}.{ddl.LEASE}") is None:
            raise SchemaMismatch(f"{self._dataset}.{ddl.LEASE}: is missing; {advice}")
        staging = self._find_dataset(self._staging)
        if staging is None:
            raise SchemaMismatch(f"{self._staging}: is missing; {advice}")
        if str(staging.location).casefold() != str(self._location).casefold():
            raise SchemaMismatch(
                f"{self._staging}: is in {staging.location}, {self._dataset} in {self._location}, and no statement "
                f"can read from two locations; remove {self._staging}, which has only temporary tables, and {advice}"
            )
        return self._staging

    @property
    def _suffix(self) -> str:
        return ddl.APPENDED if self.append_only else ""

    def _id(self, table: Table) -> str:
        return f"{self._dataset}.{table.name}{self._suffix}"

    def _existing(self) -> list[Any]:
        """Return the existing tables, from the cache of `actual` if no batch was added since."""
        tables = [self._compared.get(table.name) or self._find(self._id(table)) for table in TABLES]
        return [table for table in tables if table is not None]

    def _create_datasets(self) -> list[str]:
        from google.cloud import bigquery

        location, created = self._location, []
        datasets = [(self._dataset, None)] if self.append_only else [(self._dataset, None), (self._staging, DAY_MS)]
        for name, expires_ms in datasets:
            if self._find_dataset(name) is not None:
                continue
            dataset = bigquery.Dataset(name)
            dataset.location = location or self._location
            dataset.default_table_expiration_ms = expires_ms
            self._jobs.request(
                f"create {name}",
                lambda dataset=dataset: self._client.create_dataset(dataset, exists_ok=True, **self._jobs.call()),  # type: ignore[misc]
            )
            self.__dict__.pop("_location", None)  # the service has chosen it by now
            created.append(f"dataset {name}")
        return created

    def _create_lease(self) -> list[str]:
        """Create the table `lease`, or its row, if it is missing."""
        if self._find(f"{self._dataset}.{ddl.LEASE}") is None:
            self._run(f"create {ddl.LEASE}", ddl.create_lease(self._dataset))
            return [f"table {ddl.LEASE}"]
        if self._select("count-lease", ddl.count_lease(self._dataset)).rows == [(0,)]:
            self._run(f"fill {ddl.LEASE}", ddl.insert_lease_row(self._dataset))
            return [f"row of table {ddl.LEASE}"]
        return []

    def _insert(self, batch: Batch) -> int:
        """Insert a batch's missing rows in one transaction, retried while it conflicts with other uploaders."""
        staging = f"{self._ready}.{batch.table.name}_{batch.sha[:16]}_{uuid.uuid4().hex[:16]}"
        self._load(f"load-{batch.name[:40]}", batch.content(), batch.table, staging)
        try:
            script = ddl.insert_missing(self._dataset, batch, staging, self._retained_from)
            return self._jobs.policy.retry_contended(lambda: self._inserted(batch, script), self._jobs.deadline)
        finally:
            self._drop(staging)

    def _inserted(self, batch: Batch, script: str) -> int:
        try:
            [(added_count, missing_count, leased)] = self._select(f"insert-{batch.name[:40]}", script).rows
        except RowsRefused as error:  # the load job has accepted the rows, so the cause is not a row
            raise WarehouseFailure(f"{error}; the batch stays pending: push again") from error
        if not leased:
            raise SchemaMismatch(
                f"{self._dataset}.{ddl.LEASE}: has no row, so that concurrent uploaders could insert duplicates; "
                f"nothing was inserted; create the row with: uploader init --to {self.address}"
            )
        if missing_count:
            raise Unreachable(
                f"{self._id(batch.table)}: {missing_count:,} of {batch.contents().rows:,} rows are missing after the "
                "insert; another client may have deleted them; the batch stays pending: push again"
            )
        return int(added_count)

    def _append(self, batch: Batch) -> int:
        """Append a batch's missing lines by a load job; the view hides duplicates that concurrent uploaders append."""
        from google.cloud import bigquery

        runs = sorted({str(values["run_id"]) for values in batch.values()})
        parameters = [bigquery.ArrayQueryParameter("runs", "STRING", runs)]

        def once() -> int:
            existing = self._select(f"read-{batch.name[:40]}", ddl.existing_keys(self._dataset, batch), parameters)
            lines = ddl.missing_lines(batch, set(existing.rows))
            if lines:
                text = "\n".join(lines) + "\n"
                self._load(f"append-{batch.name[:40]}", text.encode(), batch.table, self._id(batch.table))
            return len(lines)

        return self._jobs.policy.retry_contended(once, self._jobs.deadline)

    def _load(self, name: str, lines: bytes, table: Table, target: str) -> None:
        from google.cloud import bigquery

        is_staged = target.startswith(f"{self._staging}.")
        config = bigquery.LoadJobConfig(
            source_format="NEWLINE_DELIMITED_JSON",
            schema=[_field(column, exactly=True) for column in table.columns],
            write_disposition="WRITE_TRUNCATE" if is_staged else "WRITE_APPEND",
            create_disposition="CREATE_IF_NEEDED" if is_staged else "CREATE_NEVER",
            labels=LABELS,
        )

        def start(job_id: str) -> Any:
            return self._client.load_table_from_file(
                io.BytesIO(lines),
                target,
                size=len(lines),
                job_id=job_id,
                location=self._location,
                job_config=config,
                num_retries=0,
                timeout=self._jobs.deadline.left_s(UPLOAD_S),
            )

        self._jobs.run(name, start, self._location)

    def _drop(self, staging: str) -> None:
        """Drop a staging table. Errors are ignored: it expires within a day."""
        with contextlib.suppress(WarehouseFailure, *error_mapping.client_errors()):
            self._client.delete_table(staging, retry=None, timeout=DROP_S, not_found_ok=True)

    def _replace_view(self, name: str, sql: str) -> None:
        """Create or replace a view. Raises `SchemaMismatch` if a column that it reads is missing."""
        try:
            self._run(f"create the view {name}", sql)
        except RowsRefused as error:
            advice = f"add missing columns with: uploader migrate --to {self.address}"
            raise SchemaMismatch(f"{error}; {advice}") from error

    def _run(self, action: str, sql: str) -> None:
        """Run one DDL statement, which must be idempotent."""
        self._jobs.run(action.replace(" ", "-"), lambda job_id: self._start_query(sql, None, job_id), self._location)

    def _select(self, name: str, sql: str, parameters: Sequence[Any] = ()) -> QueryResult:
        config = self._config(parameters)
        job = self._jobs.run(name, lambda job_id: self._start_query(sql, config, job_id), self._location)

        def read() -> QueryResult:
            rows = job.result(retry=None, job_retry=None, timeout=self._jobs.deadline.left_s(REQUEST_S))
            return QueryResult(tuple(field.name for field in rows.schema), [tuple(row.values()) for row in rows])

        return self._jobs.request(name, read)

    def _config(self, parameters: Sequence[Any]) -> bigquery.QueryJobConfig:
        from google.cloud import bigquery

        return bigquery.QueryJobConfig(
            default_dataset=self._dataset,
            labels=LABELS,
            maximum_bytes_billed=self._options.most_bytes_billed,
            query_parameters=list(parameters),
        )

    def _start_query(self, sql: str, config: bigquery.QueryJobConfig | None, job_id: str | None) -> Any:
        return self._client.query(
            sql,
            job_config=config,
            job_id=job_id,
            location=self._location,
            retry=None,
            job_retry=None,
            timeout=self._jobs.deadline.left_s(REQUEST_S),
        )

    def _find(self, table_id: str) -> Any:
        return self._unless_missing(self._client.get_table, table_id)

    def _find_dataset(self, name: str) -> Any:
        return self._unless_missing(self._client.get_dataset, name)

    def _unless_missing(self, get: Callable[..., Any], name: str) -> Any:
        from google.api_core.exceptions import NotFound

        def read() -> Any:
            with contextlib.suppress(NotFound):
                return get(name, **self._jobs.call())

        return self._jobs.request(f"read {name}", read)


def _scalars(parameters: Mapping[str, Scalar] | None) -> list[Any]:
    """Return query parameters as objects of the client library."""
    from google.cloud import bigquery

    return [
        bigquery.ScalarQueryParameter(name, PARAMETER_TYPES[type(value)], value)
        for name, value in (parameters or {}).items()
    ]


def _field(column: TableColumn, *, exactly: bool = False) -> Any:
    """Return a column as an object of the client library; without `exactly`, as NULLABLE unless it is REPEATED."""
    from google.cloud import bigquery

    mode = column.mode if exactly or column.mode is ColumnMode.REPEATED else ColumnMode.NULLABLE
    return bigquery.SchemaField(column.name, str(column.type), mode=str(mode), description=column.meaning)
