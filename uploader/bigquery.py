"""The BigQuery warehouse: load job, staging table, MERGE; exactly once by names that follow from the content.

A batch is loaded into a staging table of its own by a job named `bench-load-<table>-<sha>-<try>`, merged by a job named
`bench-merge-<table>-<sha>-<try>`, and the staging table dropped; its dataset lets it expire within a day if we die
before. BigQuery refuses a second job of the same name, so that whoever comes second waits for the first; `<table>` is
its dataset and when it was made, since names of jobs are the project's. MERGE only inserts, by the row's key, so that
other batches with the same rows do no harm either.

Credentials are Application Default Credentials, workload identity or impersonation; never a key file named here.
Google's libraries are imported only when a warehouse is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from uploader import ddl, refusals
from uploader.errors import RowsRefused, SchemaDiffers, Unreachable, WarehouseFailure
from uploader.outbox import Batch
from uploader.retry import Patience
from uploader.schema import TABLES, Column, Mode, Table
from uploader.sql import checked, views
from uploader.warehouse import Actual, Answer, Options, Scalar

if TYPE_CHECKING:
    from google.cloud import bigquery

TIMEOUT_S = 60.0
JOB_TIMEOUT_S = 600.0
DAY_MS = 24 * 3600 * 1000
PARAMETER_TYPES = {bool: "BOOL", int: "INT64", float: "FLOAT64", str: "STRING"}
LABELS = {"program": "keras-benchmark-matrix"}

T = TypeVar("T")


class BigQueryWarehouse:
    """One dataset, and beside it one for staging tables."""

    def __init__(
        self,
        client: bigquery.Client,
        dataset: str,
        options: Options,
        patience: Patience,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Take a client; `check` raises `WarehouseFailure` before the first request if nothing could answer it."""
        self._client = client
        self._dataset = f"{client.project}.{dataset}"
        self._staging = f"{self._dataset}_staging"
        self._options = options
        self._patience = patience
        self._check = check
        self._made: dict[str, str] = {}

    @property
    def address(self) -> str:
        """Its address."""
        return f"bigquery://{self._dataset}"

    def create(self) -> list[str]:
        """Make datasets, tables and views where they are missing; views are renewed."""
        asked = ((self._dataset, None), (self._staging, DAY_MS))
        made = [f"dataset {name}" for name, expires_ms in asked if self._dataset_made(name, expires_ms)]
        for table in TABLES:
            if self.actual(table) is None:
                self._run(f"create {table.name}", ddl.create_table(self._dataset, table, self._suffix))
                made.append(f"table {table.name}{self._suffix}")
        if self._options.append_only:
            for table in TABLES:
                self._renew_view(table.name, ddl.once_each(self._dataset, table))
        names = [table.name for table in TABLES] + list(views())
        for name, sql in views().items():
            self._renew_view(name, ddl.create_view(self._dataset, name, sql, names))
            made.append(f"view {name}")
        return made

    def actual(self, table: Table) -> Actual | None:
        """Return a table as it is."""
        found = self._found(self._id(table))
        return None if found is None else {one.name: (one.field_type, one.mode) for one in found.schema}

    def add_columns(self, table: Table, columns: Sequence[Column]) -> None:
        """Add columns, as NULLABLE or REPEATED."""
        found = self._found(self._id(table))
        if found is None:
            raise SchemaDiffers(f"{self._id(table)}: is missing; make it with: uploader init")
        found.schema = [*found.schema, *(_field(column) for column in columns)]
        self._ask(
            f"add columns to {table.name}",
            lambda: self._client.update_table(found, ["schema"], retry=None, timeout=TIMEOUT_S),
        )

    def merge(self, batch: Batch) -> int:
        """Take a batch; how, the module says."""
        if self._options.append_only:
            self._load(batch, self._name("append", batch), self._id(batch.table), "WRITE_APPEND")
            return batch.contents().rows
        name = self._name("merge", batch)
        if self._done_before(name):
            return 0
        staging = f"{self._staging}.{batch.table.name}_{batch.sha[:32]}"
        self._stage(batch, staging)
        sql = self._merge_sql(batch, staging)
        try:
            merged = self._job(name, lambda job_id: self._client.query(sql, **_query(job_id)))
        except RowsRefused as error:  # the rows were loaded: what is refused here is no row's fault
            raise WarehouseFailure(f"{error}; the batch stays pending: push again") from error
        except SchemaDiffers as error:
            if self._found(staging) is not None:
                raise  # it is another table that is missing
            if self._done_before(name):
                return 0  # by another uploader of the same batch, which then dropped the staging table
            raise Unreachable(f"{name}: its staging table vanished; push again later") from error
        self._ask(
            "drop the staging table",
            lambda: self._client.delete_table(staging, retry=None, timeout=TIMEOUT_S, not_found_ok=True),
        )
        return int(merged.num_dml_affected_rows or 0)

    def query(self, sql: str, parameters: Mapping[str, Scalar] | None = None) -> Answer:
        """Answer a SELECT."""
        from google.cloud import bigquery

        given = [
            bigquery.ScalarQueryParameter(name, PARAMETER_TYPES[type(value)], value)
            for name, value in (parameters or {}).items()
        ]
        config = bigquery.QueryJobConfig(default_dataset=self._dataset, query_parameters=given, labels=LABELS)
        config.maximum_bytes_billed = self._options.most_bytes_billed
        sql = checked(sql)
        try:
            return self._ask("query", lambda: self._answer(sql, config))
        except RowsRefused as error:
            raise WarehouseFailure(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def _suffix(self) -> str:
        return ddl.APPENDED if self._options.append_only else ""

    def _id(self, table: Table) -> str:
        return f"{self._dataset}.{table.name}{self._suffix}"

    def _dataset_made(self, name: str, expires_ms: int | None) -> bool:
        from google.cloud import bigquery

        asked = bigquery.Dataset(name)
        asked.location = self._options.location
        asked.default_table_expiration_ms = expires_ms
        if self._ask(f"read {name}", lambda: self._there(lambda: self._client.get_dataset(name, **_call()))):
            return False
        self._ask(f"create {name}", lambda: self._client.create_dataset(asked, exists_ok=True, **_call()))
        return True

    def _stage(self, batch: Batch, staging: str) -> None:
        """Load a batch into its staging table, unless an earlier push did."""
        found = self._found(staging)
        if found is None or found.num_rows != batch.contents().rows:
            self._load(batch, self._name("load", batch), staging, "WRITE_TRUNCATE")

    def _load(self, batch: Batch, name: str, target: str, disposition: str) -> None:
        from google.cloud import bigquery

        config = bigquery.LoadJobConfig(
            source_format="NEWLINE_DELIMITED_JSON",
            schema=[_field(column, exactly=True) for column in batch.table.columns],
            write_disposition=disposition,
            create_disposition="CREATE_IF_NEEDED" if target.startswith(self._staging) else "CREATE_NEVER",
            labels=LABELS,
        )

        def start(job_id: str) -> Any:
            with batch.path.open("rb") as file:
                return self._client.load_table_from_file(
                    file, target, rewind=True, job_id=job_id, job_config=config, num_retries=0, timeout=JOB_TIMEOUT_S
                )

        lasting = disposition == "WRITE_APPEND"
        self._job(name, start, holds=lambda: lasting or self._found(target) is not None)

    def _merge_sql(self, batch: Batch, staging: str) -> str:
        """Return the MERGE of a batch: by the key, a null equal to a null, within the partitions it touches."""
        pairs = [_pair(batch.table.column(name)) for name in batch.table.key]
        first, last = batch.contents().days
        names = ", ".join(column.name for column in batch.table.columns)
        return (
            f"MERGE {ddl.quoted(self._dataset, batch.table.name)} AS T\nUSING `{staging}` AS S\n"
            f"ON T.day BETWEEN DATE '{first}' AND DATE '{last}' AND {' AND '.join(pairs)}\n"
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({names})"
        )

    def _name(self, what: str, batch: Batch) -> str:
        """Return the name of a batch's job: other datasets and tables made anew have jobs of their own."""
        table = batch.table.name
        if table not in self._made:
            found = self._found(self._id(batch.table))
            made = found.created.timestamp() * 1000 if found is not None and found.created else 0
            self._made[table] = f"{self._dataset.partition('.')[2]}-{int(made):x}"
        return f"bench-{what}-{self._made[table]}-{batch.sha}"

    def _done_before(self, name: str) -> bool:
        """Return whether the first job of a name has ended well: a batch that was sent before is not loaded again."""
        job_id = f"{name}-0"
        found = self._ask(name, lambda: self._there(lambda: self._client.get_job(job_id, **_call())))
        return found is not None and found.state == "DONE" and not found.error_result

    def _job(self, name: str, start: Callable[[str], Any], holds: Callable[[], bool] = lambda: True) -> Any:
        """Bring the job of a name to its end, whoever started it; one that failed for now is followed by another.

        `holds` says whether what the job made is still there: a staging table may have been dropped since. A refusal is
        believed when a second job meets it too: uploaders that met at one table were refused for no row's fault.
        """
        waits_s, believed = self._patience.waits_s(), False
        for number, wait_s in enumerate([*waits_s, 0.0]):
            job_id = f"{name}-{number}"
            try:
                job = self._ask(name, partial(self._started, job_id, start))
                self._ended(job)
                if holds():
                    return job
            except Unreachable:
                if number == len(waits_s):
                    raise
                self._patience.sleep(wait_s)
            except RowsRefused:
                if believed:
                    raise
                believed = True
                self._patience.sleep(wait_s)
        raise Unreachable(f"{name}: its staging table vanished {len(waits_s) + 1} times; push again later")

    def _started(self, job_id: str, start: Callable[[str], Any]) -> Any:
        from google.api_core.exceptions import Conflict

        try:
            return start(job_id)
        except Conflict:
            return self._client.get_job(job_id, **_call())

    def _ended(self, job: Any) -> None:
        try:
            self._ask(f"job {job.job_id}", lambda: job.result(timeout=JOB_TIMEOUT_S))
        except RowsRefused as error:
            raise RowsRefused(_first_errors(job) or str(error)) from error

    def _renew_view(self, name: str, sql: str) -> None:
        """Create a view, or replace it. Raises `SchemaDiffers` where a table lacks a column that it reads."""
        try:
            self._run(f"create the view {name}", sql)
        except RowsRefused as error:
            advice = f"add missing columns with: uploader migrate --to {self.address}"
            raise SchemaDiffers(f"{error}; {advice}") from error

    def _run(self, doing: str, sql: str) -> None:
        self._ask(doing, lambda: self._client.query(sql, retry=None, job_retry=None, timeout=TIMEOUT_S).result())

    def _answer(self, sql: str, config: bigquery.QueryJobConfig) -> Answer:
        rows = self._client.query(sql, job_config=config, **_query(None)).result(timeout=JOB_TIMEOUT_S)
        return Answer(tuple(field.name for field in rows.schema), [tuple(row.values()) for row in rows])

    def _found(self, table_id: str) -> Any:
        return self._ask(f"read {table_id}", lambda: self._there(lambda: self._client.get_table(table_id, **_call())))

    def _there(self, ask: Callable[[], T]) -> T | None:
        from google.api_core.exceptions import NotFound

        try:
            return ask()
        except NotFound:
            return None

    def _ask(self, doing: str, ask: Callable[[], T]) -> T:
        """Ask BigQuery, again where it fails for now. Raises `WarehouseFailure`."""
        if self._check is not None:
            self._check()
            self._check = None

        def once() -> T:
            try:
                return ask()
            except WarehouseFailure:
                raise
            except refusals.kinds() as error:
                raise refusals.explained(doing, error) from None  # the client's own traceback shows requests whole

        return self._patience.insist(once)


def _call() -> dict[str, Any]:
    """Return what every call has: our own patience in place of the client's 600 s, and a time limit."""
    return {"retry": None, "timeout": TIMEOUT_S}


def _query(job_id: str | None) -> dict[str, Any]:
    return {"job_id": job_id, "retry": None, "job_retry": None, "timeout": TIMEOUT_S}


def _pair(column: Column) -> str:
    name = column.name
    if column.mode is Mode.REQUIRED:
        return f"T.{name} = S.{name}"
    return f"(T.{name} = S.{name} OR (T.{name} IS NULL AND S.{name} IS NULL))"


def _field(column: Column, *, exactly: bool = False) -> Any:
    """Return a column as the API has it; one that is added later may be NULL whatever its definition."""
    from google.cloud import bigquery

    mode = column.mode if exactly or column.mode is Mode.REPEATED else Mode.NULLABLE
    return bigquery.SchemaField(column.name, str(column.type), mode=str(mode), description=column.meaning)


def _first_errors(job: Any) -> str:
    told = [str(one.get("message", "")) for one in (job.errors or []) if isinstance(one, Mapping)]
    return "; ".join(dict.fromkeys(" ".join(text.split()) for text in told[:3] if text))
