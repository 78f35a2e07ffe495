"""The BigQuery warehouse: what a table lacks of a batch is added, each row once; the table alone decides what it lacks.

A dataset is made in one of two ways, which every command reads from it:

    with DML (the default)   a load job fills a staging table of the batch's own, one transaction inserts the rows whose
                             keys the table lacks (`uploader.ingest`), the staging table is dropped
    append-only              for projects without DML (the sandbox): the keys that `<table>_appended` holds are read, a
                             load job adds the other lines, and `<table>` is a view that shows each key once

Staging tables are in a dataset beside it and expire within a day. Credentials are Application Default Credentials,
workload identity or impersonation; never a key file named here. Google's libraries are imported only when a warehouse
is opened.
"""

from __future__ import annotations

import contextlib
import io
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from uploader import ddl, ingest, refusals
from uploader.errors import BadInput, RowsRefused, SchemaDiffers, Unreachable, WarehouseFailure
from uploader.jobs import REQUEST_S, UPLOAD_S, Jobs
from uploader.outbox import Batch
from uploader.pruning import bounded_inside
from uploader.schema import TABLES, Column, Mode, Table
from uploader.sql import checked, views
from uploader.warehouse import Actual, Answer, Options, Scalar

if TYPE_CHECKING:
    from google.cloud import bigquery

DROP_S = 10.0
DAY_MS = 24 * 3600 * 1000
PARAMETER_TYPES = {bool: "BOOL", int: "INT64", float: "FLOAT64", str: "STRING"}
LABELS = {"program": "keras-benchmark-matrix"}

T = TypeVar("T")


class BigQueryWarehouse:
    """One dataset, and beside it one for staging tables."""

    def __init__(self, jobs: Jobs, dataset: str, options: Options) -> None:
        """Take the jobs of a project's client."""
        self._jobs, self._client = jobs, jobs.client
        self._dataset = f"{self._client.project}.{dataset}"
        self._staging = f"{self._dataset}_staging"
        self._options = options
        self._compared: dict[str, Any] = {}  # tables as `actual` found them, until a batch is added

    @property
    def address(self) -> str:
        """Its address."""
        return f"bigquery://{self._dataset}"

    @property
    def append_only(self) -> bool:
        """Whether the dataset is, or is to be made, without DML."""
        return self._append_only

    def create(self) -> list[str]:
        """Make datasets, tables and views where they are missing; views are renewed."""
        made = self._create_datasets()
        for table in TABLES:
            if self.actual(table) is None:
                self._run(f"create {table.name}", ddl.create_table(self._dataset, table, self._suffix))
                made.append(f"table {table.name}{self._suffix}")
        if self._append_only:
            for table in TABLES:
                self._renew_view(table.name, ddl.once_each(self._dataset, table))
        else:
            made += self._create_lease()
        for name in views():
            first_day, append_only = self._options.first_day, self._append_only
            self._renew_view(name, ddl.create_view(self._dataset, name, first_day, append_only=append_only))
            made.append(f"view {name}")
        return made

    def actual(self, table: Table) -> Actual | None:
        """Return a table as it is."""
        found = self._compared[table.name] = self._found(self._id(table))
        return None if found is None else {one.name: (one.field_type, one.mode) for one in found.schema}

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Add columns, as NULLABLE or REPEATED."""
        found = self._found(self._id(table))
        if found is None:
            raise SchemaDiffers(f"{self._id(table)}: is missing; make it with: uploader init --to {self.address}")
        found.schema = [*found.schema, *(_field(column) for column in columns)]
        self._jobs.ask(
            f"add columns to {table.name}",
            lambda: self._client.update_table(found, ["schema"], **self._jobs.call()),
        )

    def merge(self, batch: Batch) -> int:
        """Take a batch: add the rows that the table lacks, and return how many these were."""
        self._compared.clear()  # from here on their rows are others
        once = self._append if self._append_only else self._insert
        return once(batch)

    def kept_from(self) -> str | None:
        """Return the first day whose rows the tables keep, such as 2026-01-31; None where they keep all."""
        return self._kept_from

    def is_empty(self) -> bool:
        """Return whether no table has a row, by what the tables say of themselves, which costs nothing to ask."""
        return not any(one.num_rows for one in self._existing())

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer a SELECT."""
        try:
            return self._select("query", self._pruned(sql), _scalars(parameters))
        except RowsRefused as error:
            raise WarehouseFailure(str(error)) from error

    def bytes_read(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> int | None:
        """Return how many bytes a query would read, by a dry run, which costs nothing."""
        config = self._config(_scalars(parameters))
        config.dry_run, config.use_query_cache = True, False
        sql = self._pruned(sql)
        try:
            job = self._jobs.ask("dry run", lambda: self._start_query(sql, config, None))
        except RowsRefused as error:
            raise WarehouseFailure(str(error)) from error
        return int(job.total_bytes_processed or 0)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @cached_property
    def _location(self) -> str | None:
        """Where the dataset is, or is to be made. Raises `BadInput` where --location names another region."""
        asked = self._options.location
        found = self._found_dataset(self._dataset)
        if found is None:
            return asked
        if asked is not None and asked.casefold() != str(found.location).casefold():
            raise BadInput(f"--location: {self._dataset} is in {found.location}, got {asked!r}; leave the flag out")
        return str(found.location)

    def _pruned(self, sql: str) -> str:
        """Return a query; one with @since as an append-only dataset prunes it. Raises `BadInput`."""
        sql = checked(sql)
        return bounded_inside(sql) if "@since" in sql and self._append_only else sql

    @cached_property
    def _append_only(self) -> bool:
        """Whether the dataset is one without DML: its tables' names are views. Raises `BadInput` for a wrong flag."""
        asked = self._options.append_only
        table = TABLES[0].name
        found = self._found(f"{self._dataset}.{table}")
        if found is None:
            return asked or self._found(f"{self._dataset}.{table}{ddl.APPENDED}") is not None
        if found.table_type == "VIEW":
            return True
        if asked:
            raise BadInput(
                f"--append-only: {self._dataset} was made without it, its tables are changed by DML; leave the flag "
                "out, or name another dataset"
            )
        return False

    @cached_property
    def _kept_from(self) -> str | None:
        """The first day that every table keeps: the partitions of earlier days have expired."""
        partitionings = [one.time_partitioning for one in self._existing()]
        limits_ms = [int(one.expiration_ms) for one in partitionings if one is not None and one.expiration_ms]
        if not limits_ms:
            return None
        [[day]] = self._select("read-last-day-expired", ingest.last_day_expired(min(limits_ms))).rows
        kept: date = day + timedelta(days=1)
        return kept.isoformat()

    @cached_property
    def _ready(self) -> str:
        """The dataset for staging tables, if a batch can be inserted. Raises `SchemaDiffers` if not."""
        advice = f"make it with: uploader init --to {self.address}"
        if self._found(f"{self._dataset}.{ddl.LEASE}") is None:
            raise SchemaDiffers(f"{self._dataset}.{ddl.LEASE}: is missing; {advice}")
        staging = self._found_dataset(self._staging)
        if staging is None:
            raise SchemaDiffers(f"{self._staging}: is missing; {advice}")
        if str(staging.location).casefold() != str(self._location).casefold():
            raise SchemaDiffers(
                f"{self._staging}: is in {staging.location}, {self._dataset} in {self._location}, and no statement "
                f"reads from both; remove {self._staging}, which holds nothing that lasts, and {advice}"
            )
        return self._staging

    @property
    def _suffix(self) -> str:
        return ddl.APPENDED if self._append_only else ""

    def _id(self, table: Table) -> str:
        return f"{self._dataset}.{table.name}{self._suffix}"

    def _existing(self) -> list[Any]:
        """Return the tables that are there, as they were compared if no batch was added since."""
        found = [self._compared.get(table.name) or self._found(self._id(table)) for table in TABLES]
        return [one for one in found if one is not None]

    def _create_datasets(self) -> list[str]:
        from google.cloud import bigquery

        location, made = self._location, []
        asked = [(self._dataset, None)] if self._append_only else [(self._dataset, None), (self._staging, DAY_MS)]
        for name, expires_ms in asked:
            if self._found_dataset(name) is not None:
                continue
            wanted = bigquery.Dataset(name)
            wanted.location = location or self._location
            wanted.default_table_expiration_ms = expires_ms
            self._jobs.ask(
                f"create {name}",
                lambda wanted=wanted: self._client.create_dataset(wanted, exists_ok=True, **self._jobs.call()),  # type: ignore[misc]
            )
            self.__dict__.pop("_location", None)  # it may not have been known until now
            made.append(f"dataset {name}")
        return made

    def _create_lease(self) -> list[str]:
        """Make the table `lease`, or its row, where it is missing."""
        if self._found(f"{self._dataset}.{ddl.LEASE}") is None:
            self._run(f"create {ddl.LEASE}", ddl.create_lease(self._dataset))
            return [f"table {ddl.LEASE}"]
        if self._select("count-lease", ddl.count_lease(self._dataset)).rows == [(0,)]:
            self._run(f"fill {ddl.LEASE}", ddl.fill_lease(self._dataset))
            return [f"row of table {ddl.LEASE}"]
        return []

    def _insert(self, batch: Batch) -> int:
        """Add a batch's missing rows in one transaction, repeated while other uploaders' transactions abort it."""
        staging = f"{self._ready}.{batch.table.name}_{batch.sha[:16]}_{uuid.uuid4().hex[:16]}"
        self._load(f"load-{batch.name[:40]}", batch.path.read_bytes(), batch.table, staging)
        try:
            script = ingest.insert_missing(self._dataset, batch, staging, self._kept_from)
            return self._jobs.patience.outlast(lambda: self._inserted(batch, script), self._jobs.deadline)
        finally:
            self._drop(staging)

    def _inserted(self, batch: Batch, script: str) -> int:
        try:
            [(added, missing, leased)] = self._select(f"insert-{batch.name[:40]}", script).rows
        except RowsRefused as error:  # the rows were loaded: what is refused here is no row's fault
            raise WarehouseFailure(f"{error}; the batch stays pending: push again") from error
        if not leased:
            raise SchemaDiffers(
                f"{self._dataset}.{ddl.LEASE}: has no row, without which uploaders could double rows; nothing was "
                f"inserted; make the row with: uploader init --to {self.address}"
            )
        if missing:
            raise Unreachable(
                f"{self._id(batch.table)}: lacks {missing:,} of {batch.contents().rows:,} rows after they were "
                "inserted; were they deleted meanwhile? The batch stays pending: push again"
            )
        return int(added)

    def _append(self, batch: Batch) -> int:
        """Add a batch's missing lines by a load job; where another uploader adds them too, the view shows them once."""
        from google.cloud import bigquery

        runs = sorted({str(values["run_id"]) for values in batch.values()})
        given = [bigquery.ArrayQueryParameter("runs", "STRING", runs)]

        def once() -> int:
            held = self._select(f"read-{batch.name[:40]}", ingest.held_keys(self._dataset, batch), given)
            lines = ingest.missing_lines(batch, set(held.rows))
            if lines:
                text = "\n".join(lines) + "\n"
                self._load(f"append-{batch.name[:40]}", text.encode(), batch.table, self._id(batch.table))
            return len(lines)

        return self._jobs.patience.outlast(once, self._jobs.deadline)

    def _load(self, name: str, lines: bytes, table: Table, target: str) -> None:
        from google.cloud import bigquery

        staged = target.startswith(f"{self._staging}.")
        config = bigquery.LoadJobConfig(
            source_format="NEWLINE_DELIMITED_JSON",
            schema=[_field(column, exactly=True) for column in table.columns],
            write_disposition="WRITE_TRUNCATE" if staged else "WRITE_APPEND",
            create_disposition="CREATE_IF_NEEDED" if staged else "CREATE_NEVER",
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
        """Drop a staging table; one that cannot be dropped now expires within a day."""
        with contextlib.suppress(WarehouseFailure, *refusals.kinds()):
            self._client.delete_table(staging, retry=None, timeout=DROP_S, not_found_ok=True)

    def _renew_view(self, name: str, sql: str) -> None:
        """Create a view, or replace it. Raises `SchemaDiffers` where a table lacks a column that it reads."""
        try:
            self._run(f"create the view {name}", sql)
        except RowsRefused as error:
            advice = f"add missing columns with: uploader migrate --to {self.address}"
            raise SchemaDiffers(f"{error}; {advice}") from error

    def _run(self, doing: str, sql: str) -> None:
        """Run one DDL statement, which may be repeated."""
        self._jobs.run(doing.replace(" ", "-"), lambda job_id: self._start_query(sql, None, job_id), self._location)

    def _select(self, name: str, sql: str, given: Sequence[Any] = ()) -> Answer:
        config = self._config(given)
        job = self._jobs.run(name, lambda job_id: self._start_query(sql, config, job_id), self._location)

        def read() -> Answer:
            rows = job.result(retry=None, job_retry=None, timeout=self._jobs.deadline.left_s(REQUEST_S))
            return Answer(tuple(field.name for field in rows.schema), [tuple(row.values()) for row in rows])

        return self._jobs.ask(name, read)

    def _config(self, given: Sequence[Any]) -> bigquery.QueryJobConfig:
        from google.cloud import bigquery

        return bigquery.QueryJobConfig(
            default_dataset=self._dataset,
            labels=LABELS,
            maximum_bytes_billed=self._options.most_bytes_billed,
            query_parameters=list(given),
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

    def _found(self, table_id: str) -> Any:
        return self._jobs.ask(
            f"read {table_id}", lambda: _there(lambda: self._client.get_table(table_id, **self._jobs.call()))
        )

    def _found_dataset(self, name: str) -> Any:
        return self._jobs.ask(
            f"read {name}", lambda: _there(lambda: self._client.get_dataset(name, **self._jobs.call()))
        )


def _scalars(parameters: Mapping[str, Scalar] | None) -> list[Any]:
    """Return parameters as the API has them."""
    from google.cloud import bigquery

    return [
        bigquery.ScalarQueryParameter(name, PARAMETER_TYPES[type(value)], value)
        for name, value in (parameters or {}).items()
    ]


def _there(ask: Callable[[], T]) -> T | None:
    from google.api_core.exceptions import NotFound

    try:
        return ask()
    except NotFound:
        return None


def _field(column: Column, *, exactly: bool = False) -> Any:
    """Return a column as the API has it; one that is added later may be NULL whatever its definition."""
    from google.cloud import bigquery

    mode = column.mode if exactly or column.mode is Mode.REPEATED else Mode.NULLABLE
    return bigquery.SchemaField(column.name, str(column.type), mode=str(mode), description=column.meaning)
