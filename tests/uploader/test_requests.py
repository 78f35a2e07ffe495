"""Each request to BigQuery: one transaction per batch, limits on every call, explicit types."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_matrix.uploader.bigquery.jobs import Deadline, Jobs, RetryPolicy
from keras_matrix.uploader.errors import (
    BadInput,
    Contended,
    NotAllowed,
    QuotaExceeded,
    RowsRefused,
    SchemaMismatch,
    Unreachable,
    WarehouseFailure,
)
from keras_matrix.uploader.outbox import Batch, Outbox
from keras_matrix.uploader.rows import of_record
from keras_matrix.uploader.schema import CELLS, TABLES
from keras_matrix.uploader.sql import views
from keras_matrix.uploader.warehouse import Options
from tests.uploader.stored import results_with

bigquery = pytest.importorskip(
    "google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`"
)
api = pytest.importorskip("google.api_core.exceptions", reason="google-cloud-bigquery is not installed")
DAY_MS = 24 * 3600 * 1000
MADE = [f"some-project.data.{name}" for name in (*(table.name for table in TABLES), "lease")]


class Job:
    """A job that is DONE after some reads, with a given result."""

    def __init__(self, job_id: str, rows: list[tuple[Any, ...]], error: str | None, looks: int = 0) -> None:
        self.job_id, self.location, self.total_bytes_processed = job_id, "EU", 7
        self.error_result = error and {"reason": error, "message": "as if by the server"}
        self.errors, self._rows, self._looks = None, rows, looks

    @property
    def state(self) -> str:
        """Return RUNNING for a while, then DONE."""
        self._looks -= 1
        return "RUNNING" if self._looks >= 0 else "DONE"

    def result(self, **given: Any) -> Any:
        """Return its rows."""
        return Rows(self._rows)


class Rows(list[Any]):
    """An answer."""

    schema = ()

    def __iter__(self) -> Iterator[Any]:
        return (type("Row", (), {"values": lambda self, row=row: row})() for row in super().__iter__())


@dataclass
class Client:
    """Records its calls; jobs of a kind end with the results in `fails`, one after the other.

    `lost` are numbers of inserts whose job starts and whose answer is lost; `hidden` is what asking for a job then
    raises. A script answers `inserted`: rows added, rows missing, rows of `lease` updated.
    """

    project = "some-project"
    fails: dict[str, list[str | None]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=lambda: dict.fromkeys(MADE, "TABLE"))
    datasets: dict[str, str] = field(default_factory=lambda: {"data": "EU", "data_staging": "EU"})
    inserted: tuple[int, int, int] = (3, 0, 1)
    existing: list[tuple[Any, ...]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    hidden: list[Exception] = field(default_factory=list)
    expiration_ms: int | None = None
    expirations_ms: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)

    def get_table(self, name: str, **given: Any) -> Any:
        self._note("get_table", (name,), given)
        if name not in self.tables:
            raise api.NotFound("no such table", errors=[{"reason": "notFound"}])
        table = name.split(".")[2]
        partitioning = SimpleNamespace(expiration_ms=self.expirations_ms.get(table, self.expiration_ms))
        return SimpleNamespace(
            table_type=self.tables[name], schema=[], time_partitioning=partitioning, num_rows=self.rows.get(table, 0)
        )

    def get_job(self, job_id: str, **given: Any) -> Job:
        self._note("get_job", (job_id,), given)
        if self.hidden:
            raise self.hidden.pop(0)
        return self.jobs[job_id]

    def load_table_from_file(self, file: Any, target: str, **given: Any) -> Job:
        self._note("load", (target, file.read().decode()), given)
        return self._job("load", given["job_id"], [])

    def get_dataset(self, name: str, **given: Any) -> Any:
        self._note("get_dataset", (name,), given)
        if (place := self.datasets.get(name.split(".")[1])) is None:
            raise api.NotFound("no such dataset")
        return SimpleNamespace(location=place)

    def create_dataset(self, dataset: Any, **given: Any) -> None:
        self._note("create_dataset", (dataset,), given)
        self.datasets[dataset.dataset_id] = dataset.location or "US"

    def query(self, sql: str, **given: Any) -> Job:
        self._note("query", (sql,), given)
        rows = [self.inserted] if sql.startswith("DECLARE") else self.existing
        return self._job("query", given["job_id"], rows)

    def delete_table(self, name: str, **given: Any) -> None:
        self._note("delete_table", (name,), given)

    def named(self, kind: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the calls of one kind."""
        return [(places, given) for name, places, given in self.calls if name == kind]

    def _job(self, kind: str, job_id: str | None, rows: list[tuple[Any, ...]]) -> Job:
        name = job_id or f"unnamed-{len(self.jobs)}"
        if name in self.jobs:
            raise api.Conflict("there is such a job")
        waiting = self.fails.get(kind, [])
        self.jobs[name] = Job(name, rows, waiting.pop(0) if waiting else None, self.looks)
        if len(self.jobs) - 1 in self.lost:
            raise api.ServiceUnavailable("the answer was lost", errors=[{"reason": "backendError"}])
        return self.jobs[name]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    run, outbox = results_with(tmp_path / "results", runs=1).runs()[0], Outbox(tmp_path / "outbox")
    lines = [row.line for record in run.load()[0] for row in of_record(record) if row.table is CELLS]
    with outbox.locked():
        return outbox.seal(CELLS, lines)


def opened(client: Client, **options: Any) -> Any:
    from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse

    parsed = Options(**options)
    policy = RetryPolicy(tries=3, sleep=lambda seconds: None)
    jobs: Any = Jobs(client, policy, Deadline(parsed.deadline_s))
    return BigQueryWarehouse(jobs, "data", parsed)


def appending() -> Client:
    """Return a client whose dataset was created without DML."""
    tables = {f"some-project.data.{table.name}": "VIEW" for table in TABLES}
    return Client(tables=tables | {f"{name}_appended": "TABLE" for name in tables})


def test_batch_is_loaded_into_a_separate_table_and_inserted_by_one_transaction(batch: Batch) -> None:
    client = Client()
    assert opened(client).merge(batch) == 3
    [((staging, lines), load)] = client.named("load")
    assert re.fullmatch(rf"some-project\.data_staging\.cells_{batch.sha[:16]}_[0-9a-f]{{16}}", staging)
    assert lines == batch.path.read_text()
    config = load["job_config"]
    assert (config.source_format, config.write_disposition) == ("NEWLINE_DELIMITED_JSON", "WRITE_TRUNCATE")
    assert (config.autodetect, config.schema_update_options) == (None, None)
    assert [(one.name, one.mode) for one in config.schema] == [(one.name, one.mode) for one in CELLS.columns]
    [((sql,), call)] = client.named("query")
    steps = ["BEGIN TRANSACTION", "UPDATE `some-project.data.lease`", "INSERT INTO `some-project.data.cells`", "COMMIT"]
    assert [sql.index(step) for step in steps] == sorted(sql.index(step) for step in steps)
    assert "T.day BETWEEN DATE '2026-01-01' AND DATE '2026-01-01' AND T.run_id = S.run_id" in sql
    assert call["job_config"].maximum_bytes_billed == 10 << 30
    assert client.named("delete_table")[0][0] == (staging,)


def test_staging_tables_and_jobs_have_new_names_and_existing_keys_are_read_from_the_table(
    batch: Batch,
) -> None:
    client = Client()
    warehouse = opened(client)
    warehouse.merge(batch)
    client.inserted = (0, 0, 1)
    assert warehouse.merge(batch) == 0
    assert len({staging for (staging, _), _ in client.named("load")}) == 2
    assert len(client.jobs) == 4


def test_rows_missing_after_the_insert_leave_the_batch_pending(batch: Batch) -> None:
    with pytest.raises(Unreachable, match=r"data\.cells: 2 of 3 rows are missing after the insert.*push again"):
        opened(Client(inserted=(1, 2, 1))).merge(batch)


def test_rows_older_than_the_retention_do_not_count_as_missing(batch: Batch) -> None:
    client = Client(expiration_ms=60 * DAY_MS, existing=[(date(2025, 11, 29),)])
    warehouse = opened(client)
    assert warehouse.retained_from() == "2025-11-30"
    warehouse.merge(batch)
    [query, insert] = [sql for (sql,), _ in client.named("query")]
    assert "TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 5184000000 MILLISECOND)" in query
    assert "AND S.day >= DATE '2025-11-30') AS missing" in insert
    assert opened(Client()).retained_from() is None


def test_table_metadata_is_cached_until_a_batch_is_added(batch: Batch) -> None:
    client = Client()
    warehouse = opened(client)
    for table in TABLES:
        warehouse.actual(table)
    before = len(client.named("get_table"))
    assert (warehouse.retained_from(), warehouse.is_empty()) == (None, True)
    assert len(client.named("get_table")) == before
    warehouse.merge(batch)
    before = len(client.named("get_table"))
    warehouse.is_empty()
    assert len(client.named("get_table")) > before


def test_both_datasets_are_created_in_the_requested_location_and_staging_expires_after_a_day() -> None:
    client = Client(tables={}, datasets={})
    opened(client, location="EU").create()
    made = [dataset for (dataset,), _ in client.named("create_dataset")]
    assert [(one.dataset_id, one.location, one.default_table_expiration_ms) for one in made] == [
        ("data", "EU", None),
        ("data_staging", "EU", 24 * 3600 * 1000),
    ]
    assert {given["location"] for _, given in client.named("query")} == {"EU"}


def test_staging_tables_are_created_in_the_datasets_location() -> None:
    client = Client(datasets={"data": "europe-west3"})
    opened(client).create()
    [((made,), _)] = client.named("create_dataset")
    assert (made.dataset_id, made.location) == ("data_staging", "europe-west3")


def test_without_dml_table_names_are_views_of_appended_rows_and_nothing_is_staged() -> None:
    client = Client(tables={}, datasets={})
    opened(client, append_only=True).create()
    made = re.findall(r"CREATE (?:OR REPLACE )?(\w+).*?`some-project\.data\.(\w+)`", str(client.named("query")))
    names = [table.name for table in TABLES]
    assert [name for kind, name in made if kind == "TABLE"] == [f"{name}_appended" for name in names]
    assert [name for kind, name in made if kind == "VIEW"] == [*names, *views()]
    assert list(client.datasets) == ["data"]


def test_every_call_has_a_timeout_no_library_retries_and_the_datasets_location(
    batch: Batch,
) -> None:
    client = Client(looks=2)
    warehouse = opened(client)
    warehouse.merge(batch)
    warehouse.query("SELECT 1 AS one")
    assert {name for name, _, _ in client.calls} >= {"get_table", "get_job", "load", "query", "delete_table"}
    for name, _, given in client.calls:
        assert 0 < given["timeout"] <= 300, name
        assert given.get("retry", given.get("num_retries", "its own")) in (None, 0), name
        assert name not in ("load", "query", "get_job") or given["location"] == "EU"


def test_deadline_limits_each_call_and_no_call_is_made_after_it(batch: Batch) -> None:
    client, now_s = Client(), [0.0]
    warehouse = opened(client, deadline_s=90.0)
    warehouse._jobs.deadline.clock = lambda: now_s[0]
    warehouse.query("SELECT 1 AS one")
    now_s[0] = 60.0
    warehouse.merge(batch)
    assert [given["timeout"] for _, given in client.named("load")] == [30.0]
    now_s[0] = 90.0
    before = len(client.calls)
    with pytest.raises(Unreachable, match=r"not finished after 1\.5 minutes; pending batches stay"):
        warehouse.query("SELECT 1 AS one")
    assert len(client.calls) == before


@pytest.mark.parametrize("kind", ["load", "query"])
@pytest.mark.parametrize("reason", ["backendError", "resourcesExceeded", "jobRateLimitExceeded"])
def test_job_with_a_retryable_error_is_followed_by_one_with_a_new_id(batch: Batch, kind: str, reason: str) -> None:
    client = Client(fails={kind: [reason]})
    assert opened(client).merge(batch) == 3
    assert len(client.named(kind)) == 2
    assert len(client.jobs) == 3


def test_failed_job_does_not_block_later_pushes(batch: Batch) -> None:
    client = Client(fails={"load": ["quotaExceeded"]})
    warehouse = opened(client)
    with pytest.raises(QuotaExceeded):
        warehouse.merge(batch)
    assert warehouse.merge(batch) == 3


def test_row_refused_by_a_load_job_is_not_retried(batch: Batch) -> None:
    client = Client(fails={"load": ["invalid"]})
    with pytest.raises(RowsRefused, match="as if by the server"):
        opened(client).merge(batch)
    assert len(client.named("load")) == 1
    assert client.named("query") == []


@pytest.mark.parametrize("insert", [0, 1])
def test_insert_whose_response_was_lost_is_found_by_its_id(batch: Batch, insert: int) -> None:
    client = Client(lost={insert})
    assert opened(client).merge(batch) == 3
    assert len(client.jobs) == 2
    [((job_id,), given)] = client.named("get_job")
    assert (job_id, given["location"]) == (list(client.jobs)[insert], "EU")


def test_accepted_job_that_is_not_readable_yet_is_read_again(batch: Batch) -> None:
    client = Client(lost={1}, hidden=[api.NotFound("not found: job")])
    assert opened(client).merge(batch) == 3
    assert len(client.named("get_job")) == 2


def test_job_that_its_owner_may_not_read_is_followed_by_one_with_a_new_id(batch: Batch) -> None:
    client = Client(lost={1}, hidden=[api.Forbidden("bigquery.jobs.get", errors=[{"reason": "accessDenied"}])])
    assert opened(client).merge(batch) == 3
    assert len(client.jobs) == 3


@pytest.mark.parametrize(
    ("reason", "kind", "tries"),
    [
        ("invalidQuery", WarehouseFailure, 1),
        ("billingNotEnabled", NotAllowed, 1),
        ("notFound", SchemaMismatch, 1),
        ("backendError", Unreachable, 3),
    ],
)
def test_error_of_the_insert_is_not_attributed_to_a_row(
    batch: Batch, reason: str, kind: type[WarehouseFailure], tries: int
) -> None:
    client = Client(fails={"query": [reason] * tries})
    with pytest.raises(kind) as raised:
        opened(client).merge(batch)
    assert type(raised.value) is kind
    assert len(client.named("query")) == tries
    assert len(client.named("delete_table")) == 1


def test_aborted_transaction_is_retried_until_the_deadline_with_one_load(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, answers = Client(), [Contended("aborted")] * 20
    warehouse = opened(client)
    select = warehouse._select

    def contended(*given: Any) -> Any:
        if answers:
            raise answers.pop()
        return select(*given)

    monkeypatch.setattr(warehouse, "_select", contended)
    assert warehouse.merge(batch) == 3
    assert len(client.named("load")) == 1
    now_s = itertools.count()
    late = opened(Client(), deadline_s=10.0)
    late._jobs.deadline.clock = lambda: float(next(now_s))
    monkeypatch.setattr(late, "_select", lambda *given: (_ for _ in ()).throw(Contended("aborted")))
    with pytest.raises(Contended):
        late.merge(batch)


def test_location_must_match_the_dataset_or_be_omitted(batch: Batch) -> None:
    with pytest.raises(BadInput, match=r"--location: some-project\.data is in EU, got 'US'; omit the flag"):
        opened(Client(), location="US").merge(batch)
    assert opened(Client(), location="eu").merge(batch) == 3


def test_staging_in_another_location_and_a_missing_lease_are_reported_before_a_row_is_sent(
    batch: Batch,
) -> None:
    elsewhere = Client(datasets={"data": "EU", "data_staging": "US"})
    with pytest.raises(SchemaMismatch, match=r"data_staging: is in US, some-project\.data in EU.*uploader init --to"):
        opened(elsewhere).merge(batch)
    older = Client()
    older.tables.pop("some-project.data.lease")
    with pytest.raises(
        SchemaMismatch, match=r"data\.lease: is missing; create it with: uploader init --to bigquery://"
    ):
        opened(older).merge(batch)
    unmade = Client(datasets={"data": "EU"})
    with pytest.raises(SchemaMismatch, match=r"data_staging: is missing; create it with: uploader init"):
        opened(unmade).merge(batch)
    assert elsewhere.named("load") == older.named("load") == unmade.named("load") == []


def test_mode_of_a_dataset_is_detected_and_a_contradicting_flag_is_rejected(batch: Batch) -> None:
    client = appending()
    assert opened(client).merge(batch) == 3
    assert client.named("load")[0][0][0] == "some-project.data.cells_appended"
    with pytest.raises(BadInput, match=r"--append-only: some-project\.data was created without it.*omit the flag"):
        opened(Client(), append_only=True).merge(batch)


def test_a_query_has_its_limit_its_dataset_and_its_parameters_by_type(batch: Batch) -> None:
    client = Client()
    given = {"name": "x' OR 1=1", "most": 3, "share": 0.5, "all": True}
    sql = "SELECT @name AS a, @most AS b, @share AS c, @all AS d"
    warehouse = opened(client, most_bytes_billed=1 << 30)
    warehouse.query(sql, given)
    assert warehouse.bytes_read(sql, given) == 7
    configs = [call["job_config"] for _, call in client.named("query")]
    assert [config.dry_run for config in configs] == [None, True]
    for config in configs:
        assert config.maximum_bytes_billed == 1 << 30
        assert str(config.default_dataset) == "some-project.data"
        assert {one.name: (one.type_, one.value) for one in config.query_parameters} == {
            "name": ("STRING", "x' OR 1=1"),
            "most": ("INT64", 3),
            "share": ("FLOAT64", 0.5),
            "all": ("BOOL", True),
        }


@pytest.mark.parametrize("sql", ["DROP TABLE cells", "SELECT 1; SELECT 2", "DELETE FROM cells WHERE TRUE"])
def test_only_a_single_select_is_sent(sql: str) -> None:
    client = Client()
    for ask in (opened(client).query, opened(client).bytes_read):
        with pytest.raises(BadInput, match="must be one SELECT"):
            ask(sql)
    assert client.named("query") == []


def test_without_dml_the_lines_whose_keys_are_missing_are_appended_and_no_statement_changes_a_row(batch: Batch) -> None:
    client = appending()
    values = list(batch.values())
    client.existing = [tuple(values[1][name] for name in CELLS.key)]
    assert opened(client).merge(batch) == 2
    [((sql,), call)] = client.named("query")
    assert sql.startswith("SELECT run_id, cell_id, repeat, attempt FROM `some-project.data.cells_appended`")
    assert "WHERE day BETWEEN DATE '2026-01-01' AND DATE '2026-01-01' AND run_id IN UNNEST(@runs)" in sql
    assert [one.values for one in call["job_config"].query_parameters] == [[values[0]["run_id"]]]
    [((target, lines), given)] = client.named("load")
    assert target == "some-project.data.cells_appended"
    assert lines.splitlines() == [batch.lines()[0], batch.lines()[2]]
    config = given["job_config"]
    assert (config.write_disposition, config.create_disposition) == ("WRITE_APPEND", "CREATE_NEVER")


def test_without_dml_a_batch_without_missing_rows_is_not_loaded(batch: Batch) -> None:
    client = appending()
    client.existing = [tuple(values[name] for name in CELLS.key) for values in batch.values()]
    assert opened(client).merge(batch) == 0
    assert client.named("load") == []


def test_without_dml_reading_the_keys_is_repeated_while_another_uploader_changes_the_table(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = appending()
    warehouse = opened(client)
    read, failures = warehouse._select, [Contended("aborted"), Contended("aborted")]

    def contended(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*given)

    monkeypatch.setattr(warehouse, "_select", contended)
    assert warehouse.merge(batch) == 3
    assert len(client.named("load")) == 1


def test_keys_of_every_run_and_day_of_a_batch_are_read_before_it_is_appended(tmp_path: Path) -> None:
    runs, outbox = results_with(tmp_path / "results", runs=3).runs(), Outbox(tmp_path / "outbox")
    lines = [row.line for run in runs for record in run.load()[0] for row in of_record(record) if row.table is CELLS]
    with outbox.locked():
        batch = outbox.seal(CELLS, lines)
    client = appending()
    opened(client).merge(batch)
    [((sql,), call)] = client.named("query")
    assert "WHERE day BETWEEN DATE '2026-01-01' AND DATE '2026-01-03' AND run_id IN UNNEST(@runs)" in sql
    [given] = call["job_config"].query_parameters
    assert given.values == [run.run_id for run in runs]


def test_shortest_retention_of_the_tables_applies() -> None:
    client = Client(expirations_ms={"runs": 90 * DAY_MS, "findings": 60 * DAY_MS}, existing=[(date(2025, 11, 29),)])
    assert opened(client).retained_from() == "2025-11-30"
    [((sql,), _)] = client.named("query")
    assert f"INTERVAL {60 * DAY_MS} MILLISECOND" in sql


def test_a_warehouse_is_empty_only_if_no_table_has_a_row() -> None:
    assert opened(Client()).is_empty()
    assert [opened(Client(rows={table.name: 1})).is_empty() for table in TABLES] == [False] * len(TABLES)
    without_dml = appending()
    without_dml.rows = {"findings_appended": 1}
    assert not opened(without_dml).is_empty()


def test_without_dml_the_day_filter_is_applied_before_deduplication() -> None:
    client, sql = appending(), "SELECT run_id FROM cells WHERE day >= CAST(@since AS DATE)"
    warehouse = opened(client)
    warehouse.query(sql, {"since": "2026-01-01"})
    warehouse.bytes_read(sql, {"since": "2026-01-01"})
    sent = [dataset for (dataset,), _ in client.named("query")]
    assert len(sent) == 2
    assert all("FROM cells_appended WHERE day >= CAST(@since AS DATE) QUALIFY" in one for one in sent)
