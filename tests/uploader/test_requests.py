"""What BigQuery is asked, call by call: names that follow from the content, limits on everything, no type guessed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.uploader.stored import results_with
from uploader.errors import BadInput, NotAllowed, RowsRefused, SchemaDiffers, Unreachable, WarehouseFailure
from uploader.outbox import Batch, Outbox
from uploader.retry import Patience
from uploader.rows import of_record
from uploader.schema import CELLS, TABLES
from uploader.sql import views
from uploader.warehouse import Options

bigquery = pytest.importorskip(
    "google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`"
)
api = pytest.importorskip("google.api_core.exceptions", reason="google-cloud-bigquery is not installed")


class Job:
    """A job that ends as it was told to."""

    def __init__(self, job_id: str, error: Exception | None = None) -> None:
        self.job_id, self.errors, self.num_dml_affected_rows = job_id, None, 3
        self.state, self.error_result, self._error = "DONE", error and {"reason": "x"}, error

    def result(self, **given: Any) -> Any:
        """Return no rows, or fail."""
        if self._error:
            raise self._error
        return Rows()


class Rows(list[Any]):
    """An answer without a row."""

    schema = ()


class Client:
    """Keeps what it is asked; jobs of a kind end as `fails` says, one after the other."""

    project = "some-project"

    def __init__(self, **fails: list[Exception | None]) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.jobs: dict[str, Job] = {}
        self.tables = {f"some-project.data.{table.name}" for table in TABLES}
        self._fails = fails

    def get_table(self, name: str, **given: Any) -> Any:
        self._note("get_table", (name,), given)
        if name not in self.tables:
            raise api.NotFound("no such table", errors=[{"reason": "notFound"}])
        return type("Table", (), {"created": datetime(2026, 1, 1, tzinfo=UTC), "num_rows": -1, "schema": []})

    def get_job(self, job_id: str, **given: Any) -> Job:
        self._note("get_job", (job_id,), given)
        if job_id not in self.jobs:
            raise api.NotFound("no such job")
        return self.jobs[job_id]

    def load_table_from_file(self, file: Any, target: str, **given: Any) -> Job:
        self._note("load", (target,), given)
        self.tables.add(target)
        return self._job("load", given["job_id"])

    def get_dataset(self, name: str, **given: Any) -> Any:
        self._note("get_dataset", (name,), given)
        raise api.NotFound("no such dataset")

    def create_dataset(self, asked: Any, **given: Any) -> None:
        self._note("create_dataset", (asked,), given)

    def query(self, sql: str, **given: Any) -> Job:
        self._note("query", (sql,), given)
        return self._job("query", given.get("job_id") or f"unnamed-{len(self.jobs)}")

    def delete_table(self, name: str, **given: Any) -> None:
        self._note("delete_table", (name,), given)
        self.tables.discard(name)

    def named(self, kind: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the calls of one kind."""
        return [(places, given) for name, places, given in self.calls if name == kind]

    def _job(self, kind: str, job_id: str) -> Job:
        if job_id in self.jobs:
            raise api.Conflict("there is such a job")
        waiting = self._fails.get(kind, [])
        self.jobs[job_id] = Job(job_id, waiting.pop(0) if waiting else None)
        return self.jobs[job_id]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    run, outbox = results_with(tmp_path / "results", runs=1).runs()[0], Outbox(tmp_path / "outbox")
    lines = [row.line for record in run.load()[0] for row in of_record(record) if row.table is CELLS]
    with outbox.locked():
        return outbox.seal(CELLS, lines)


def opened(client: Client, **options: Any) -> Any:
    from uploader.bigquery import BigQueryWarehouse

    patience = Patience(tries=3, sleep=lambda seconds: None)
    return BigQueryWarehouse(client, "data", Options(**options), patience)  # type: ignore[arg-type]


def failure(kind: str, reason: str) -> Exception:
    found: Exception = getattr(api, kind)("as if by the server", errors=[{"reason": reason}])
    return found


def test_a_batch_is_loaded_and_merged_by_jobs_that_its_content_names(batch: Batch) -> None:
    client = Client()
    assert opened(client).merge(batch) == 3
    made = f"{int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000):x}"
    assert list(client.jobs) == [f"bench-{what}-data-{made}-{batch.sha}-0" for what in ("load", "merge")]
    [((staging,), load)] = client.named("load")
    assert staging == f"some-project.data_staging.cells_{batch.sha[:32]}"
    config = load["job_config"]
    assert (config.source_format, config.write_disposition) == ("NEWLINE_DELIMITED_JSON", "WRITE_TRUNCATE")
    assert (config.autodetect, config.schema_update_options) == (None, None)
    assert [(one.name, one.mode) for one in config.schema] == [(one.name, one.mode) for one in CELLS.columns]
    [((sql,), _)] = client.named("query")
    assert re.search(r"ON T.day BETWEEN DATE '2026-01-01' AND DATE '2026-01-01' AND T.run_id = S.run_id", sql)
    assert "WHEN MATCHED" not in sql
    assert client.named("delete_table")[0][0] == (staging,)


def test_both_datasets_are_made_where_was_asked_and_what_waits_in_staging_vanishes_after_a_day() -> None:
    client = Client()
    opened(client, location="EU").create()
    made = [asked for (asked,), _ in client.named("create_dataset")]
    assert [(one.dataset_id, one.location, one.default_table_expiration_ms) for one in made] == [
        ("data", "EU", None),
        ("data_staging", "EU", 24 * 3600 * 1000),
    ]


def test_without_dml_the_names_of_tables_are_views_of_what_was_appended() -> None:
    client = Client()
    opened(client, append_only=True).create()
    made = re.findall(r"CREATE (?:OR REPLACE )?(\w+).*?`some-project\.data\.(\w+)`", str(client.named("query")))
    names = [table.name for table in TABLES]
    assert [name for kind, name in made if kind == "TABLE"] == [f"{name}_appended" for name in names]
    assert [name for kind, name in made if kind == "VIEW"] == [*names, *views()]


def test_a_batch_that_was_merged_before_is_neither_loaded_nor_merged_again(batch: Batch) -> None:
    client = Client()
    warehouse = opened(client)
    assert [warehouse.merge(batch), warehouse.merge(batch)] == [3, 0]
    assert len(client.named("load")) == len(client.named("query")) == 1


def test_every_call_ends_by_itself_and_none_is_tried_again_behind_our_back(batch: Batch) -> None:
    client = Client()
    warehouse = opened(client)
    warehouse.merge(batch)
    warehouse.query("SELECT 1 AS one")
    assert {name for name, _, _ in client.calls} >= {"get_table", "get_job", "load", "query", "delete_table"}
    for name, _, given in client.calls:
        assert 0 < given["timeout"] <= 600, name
        assert given.get("retry", given.get("num_retries", "its own")) in (None, 0), name


def test_a_job_that_failed_for_now_is_followed_by_another_and_a_refusal_is_believed_the_second_time(
    batch: Batch,
) -> None:
    client = Client(load=[failure("ServiceUnavailable", "backendError")])
    assert opened(client).merge(batch) == 3
    assert [job_id[-2:] for job_id in client.jobs if "-load-" in job_id] == ["-0", "-1"]
    client = Client(load=[failure("BadRequest", "invalid")] * 2)
    with pytest.raises(RowsRefused, match="as if by the server"):
        opened(client).merge(batch)
    assert len(client.named("load")) == 2


@pytest.mark.parametrize(
    ("error", "kind", "tries"),
    [
        (("BadRequest", "invalid"), WarehouseFailure, 2),
        (("Forbidden", "billingNotEnabled"), NotAllowed, 1),
        (("NotFound", "notFound"), SchemaDiffers, 1),
        (("ServiceUnavailable", "backendError"), Unreachable, 3),
    ],
)
def test_what_the_merge_is_refused_is_no_rows_fault(
    batch: Batch, error: tuple[str, str], kind: type[WarehouseFailure], tries: int
) -> None:
    client = Client(query=[failure(*error)] * tries)
    with pytest.raises(kind) as raised:
        opened(client).merge(batch)
    assert type(raised.value) is kind
    assert len(client.named("query")) == tries


def test_a_query_has_its_limit_its_dataset_and_its_parameters_by_type(batch: Batch) -> None:
    client = Client()
    given = {"name": "x' OR 1=1", "most": 3, "share": 0.5, "all": True}
    opened(client, most_bytes_billed=1 << 30).query("SELECT @name AS a, @most AS b, @share AS c, @all AS d", given)
    [(_, asked)] = client.named("query")
    config = asked["job_config"]
    assert config.maximum_bytes_billed == 1 << 30
    assert str(config.default_dataset) == "some-project.data"
    assert {one.name: (one.type_, one.value) for one in config.query_parameters} == {
        "name": ("STRING", "x' OR 1=1"),
        "most": ("INT64", 3),
        "share": ("FLOAT64", 0.5),
        "all": ("BOOL", True),
    }


@pytest.mark.parametrize("sql", ["DROP TABLE cells", "SELECT 1; SELECT 2", "DELETE FROM cells WHERE TRUE"])
def test_what_is_no_single_select_is_never_sent(sql: str) -> None:
    client = Client()
    with pytest.raises(BadInput, match="must be one SELECT"):
        opened(client).query(sql)
    assert client.calls == []


def test_without_dml_a_batch_is_appended_and_nothing_is_merged(batch: Batch) -> None:
    client = Client()
    client.tables.add("some-project.data.cells_appended")
    assert opened(client, append_only=True).merge(batch) == 3
    [((target,), given)] = client.named("load")
    assert target == "some-project.data.cells_appended"
    assert given["job_config"].write_disposition == "WRITE_APPEND"
    assert client.named("query") == []
