"""Data of the fake service with the real client: types, loads, queries, definitions, bytes read."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.uploader.service import scanned
from tests.uploader.service.asking import MARKS, ONCE, PROJECT, ask, client, load, start
from tests.uploader.service.server import Server
from tests.uploader.service.service import Service

pytestmark = MARKS
TABLE = "some-project.d.t"
CREATE = f"""
CREATE TABLE IF NOT EXISTS `{TABLE}` (
  day DATE NOT NULL OPTIONS (description = "the day"), k INT64, name STRING, value FLOAT64, good BOOL, at TIMESTAMP,
  facts JSON, tags ARRAY<STRING>
)
PARTITION BY day CLUSTER BY name, k OPTIONS (description = "a table")
"""
ROW = {
    "day": "2026-01-01",
    "k": 1,
    "name": "é",
    "value": 0.5,
    "good": True,
    "at": "2026-01-01T02:00:00+00:00",
    "facts": {"a": [1, "x"]},
    "tags": ["p", "q"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    server = Server(Service())
    with server as url:
        yield server, url


@pytest.fixture
def asking(server: tuple[Server, str]) -> Iterator[Any]:
    made = client(server[1])
    made.create_dataset("d")
    ask(made, CREATE)
    yield made
    made.delete_dataset("d", delete_contents=True)
    made.close()


def test_values_of_every_type_arrive_and_come_back(asking: Any) -> None:
    load(asking, TABLE, [ROW, {"day": "2026-01-02"}]).result()
    at = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.UTC)
    assert ask(asking, f"SELECT * FROM `{TABLE}` ORDER BY day") == [
        (datetime.date(2026, 1, 1), 1, "é", 0.5, True, at, {"a": [1, "x"]}, ["p", "q"]),
        (datetime.date(2026, 1, 2), None, None, None, None, None, None, []),
    ]
    assert [tuple(row.values()) for row in asking.list_rows(TABLE)][1][0] == datetime.date(2026, 1, 2)


def test_table_says_how_it_is_partitioned_clustered_and_described(asking: Any) -> None:
    table = asking.get_table(TABLE)
    assert (table.time_partitioning.field, table.clustering_fields) == ("day", ["name", "k"])
    assert (table.description, table.schema[0].description, table.schema[0].mode) == ("a table", "the day", "REQUIRED")
    assert (table.schema[7].field_type, table.schema[7].mode) == ("STRING", "REPEATED")
    assert (table.location, table.num_rows, table.expires) == ("US", 0, None)


def test_large_answer_comes_in_pages(asking: Any) -> None:
    found = start(asking, "SELECT n FROM UNNEST(GENERATE_ARRAY(1, 25)) AS n ORDER BY n").result(page_size=10)
    assert [len(list(page)) for page in found.pages] == [10, 10, 5]


def test_file_of_unknown_size_is_loaded_by_a_resumable_upload(asking: Any, server: tuple[Server, str]) -> None:
    from google.cloud import bigquery

    lines = "\n".join(json.dumps({"day": "2026-01-01", "k": k}) for k in range(100))
    config = bigquery.LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON")
    upload = asking.load_table_from_file(io.BytesIO(lines.encode()), TABLE, job_config=config, num_retries=0)
    assert upload.result().output_rows == 100
    assert [one.method for one in server[0].requests if one.path.startswith("/upload")][-2:] == ["POST", "PUT"]
    assert ask(asking, f"SELECT SUM(k) FROM `{TABLE}`") == [(4950,)]


def test_load_replaces_appends_or_is_refused_as_its_dispositions_say(asking: Any) -> None:
    schema = asking.get_table(TABLE).schema
    for disposition, count in (("WRITE_APPEND", 1), ("WRITE_APPEND", 2), ("WRITE_TRUNCATE", 1)):
        load(asking, TABLE, [ROW], schema=schema, write_disposition=disposition).result()
        assert ask(asking, f"SELECT COUNT(*) FROM `{TABLE}`") == [(count,)]
    missing = load(asking, f"{PROJECT}.d.new", [ROW], schema=schema, create_disposition="CREATE_NEVER")
    assert missing.error_result["message"] == "Not found: Table some-project:d.new"
    load(asking, f"{PROJECT}.d.new", [ROW], schema=schema).result()
    assert asking.get_table(f"{PROJECT}.d.new").num_rows == 1


def test_load_whose_schema_differs_from_the_table_is_refused(asking: Any) -> None:
    from google.cloud import bigquery

    other = [bigquery.SchemaField("day", "DATE", "REQUIRED"), bigquery.SchemaField("k", "STRING")]
    job = load(asking, TABLE, [], schema=other)
    assert job.error_result["message"] == (
        "Provided Schema does not match Table some-project:d.t. Field k has changed type from INTEGER to STRING"
    )


def test_json_text_stays_text_in_a_json_column(asking: Any) -> None:
    """docs/reference/standard-sql/json-data: a load job does not change the value; the emulator parses strings."""
    load(asking, TABLE, [{"day": "2026-01-01", "facts": '{"a": 1}'}]).result()
    assert ask(asking, f"SELECT JSON_TYPE(facts) FROM `{TABLE}`")[0][0].lower() in ("string", "varchar")


def test_columns_can_be_added_and_relaxed_and_nothing_else(asking: Any) -> None:
    """docs/managing-table-schemas: columns are added as NULLABLE or REPEATED, REQUIRED is relaxed to NULLABLE."""
    from google.api_core.exceptions import BadRequest
    from google.cloud.bigquery import SchemaField

    table = asking.get_table(TABLE)
    before = list(table.schema)
    table.schema = [*before, SchemaField("more", "INT64")]
    assert asking.update_table(table, ["schema"]).schema[-1].name == "more"
    for changed in ([*before, SchemaField("must", "INT64", "REQUIRED")], before[1:]):
        table.schema = changed
        with pytest.raises(BadRequest, match="Provided Schema does not match Table"):
            asking.update_table(table, ["schema"], **ONCE)
    ask(asking, f"ALTER TABLE `{TABLE}` ADD COLUMN IF NOT EXISTS more INT64, ADD COLUMN last STRING")
    assert [one.name for one in asking.get_table(TABLE).schema[-2:]] == ["more", "last"]


def test_parameters_default_dataset_and_unnamed_columns(asking: Any) -> None:
    from google.cloud.bigquery import ArrayQueryParameter, ScalarQueryParameter

    load(asking, TABLE, [ROW]).result()
    given = [
        ScalarQueryParameter("name", "STRING", "é"),
        ScalarQueryParameter("since", "DATE", datetime.date(2026, 1, 1)),
        ArrayQueryParameter("keys", "INT64", [1, 2]),
    ]
    sql = "SELECT k, COUNT(*) FROM t WHERE name = @name AND day >= @since AND k IN UNNEST(@keys) GROUP BY k"
    job = start(asking, sql, query_parameters=given, default_dataset=f"{PROJECT}.d")
    assert [dict(row) for row in job.result()] == [{"k": 1, "f0_": 1}]
    missing = start(asking, "SELECT @name", default_dataset=f"{PROJECT}.d")
    assert missing.error_result["message"] == "Query parameter 'name' not found"


def test_view_reads_tables_as_they_are_now(asking: Any) -> None:
    ask(asking, f"CREATE OR REPLACE VIEW `{PROJECT}.d.v` OPTIONS (description = 'x') AS SELECT t.* FROM `{TABLE}` AS t")
    ask(asking, f"ALTER TABLE `{TABLE}` ADD COLUMN more INT64")
    load(asking, TABLE, [ROW | {"more": 7}]).result()
    assert ask(asking, "SELECT v.more, v.name FROM v AS v", default_dataset=f"{PROJECT}.d") == [(7, "é")]
    assert asking.get_table(f"{PROJECT}.d.v").view_query.startswith("SELECT t.*")
    failed = start(asking, f"CREATE VIEW `{PROJECT}.d.w` AS SELECT missing FROM `{TABLE}`")
    assert failed.error_result["message"] == "Unrecognized name: missing"


def test_create_table_as_select_has_its_rows(asking: Any) -> None:
    load(asking, TABLE, [ROW]).result()
    ask(asking, f"CREATE TABLE `{PROJECT}.d.copy` PARTITION BY day AS SELECT day, tags, facts FROM `{TABLE}`")
    assert asking.get_table(f"{PROJECT}.d.copy").time_partitioning.field == "day"
    assert ask(asking, f"SELECT tags FROM `{PROJECT}.d.copy`") == [(["p", "q"],)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "Syntax error"),
        ("SELECT nothing FROM d.t", "Unrecognized name: nothing"),
        ("SELECT 1 FROM d.missing", "Not found: Table some-project:d.missing was not found in location US"),
        ("SELECT 1 FROM alone", 'Table "alone" must be qualified with a dataset'),
        ("UPDATE d.t SET k = 1", "UPDATE must have a WHERE clause"),
        ("INSERT INTO d.t (k) VALUES (1)", "Required field day cannot be null"),
        ("ASSERT 1 = 2 AS 'one is not two'", "one is not two"),
        ("COMMIT TRANSACTION", "There is no active transaction"),
        ("IF TRUE THEN SELECT 1; END IF", "The fake service does not model IF in scripts"),
    ],
)
def test_query_that_fails_says_why_on_its_job(asking: Any, sql: str, message: str) -> None:
    job = start(asking, sql)
    assert job.exception(timeout=60) is not None  # waits for its end
    assert job.error_result["message"].startswith(message)


def test_query_and_wait_answers_in_one_request(asking: Any) -> None:
    assert [tuple(row) for row in asking.query_and_wait("SELECT 1 AS one", **{"retry": None})] == [(1,)]


def test_dry_run_reads_only_the_columns_and_days_that_are_asked_for(asking: Any, server: tuple[Server, str]) -> None:
    from google.cloud.bigquery import ScalarQueryParameter

    load(asking, TABLE, [ROW | {"day": f"2026-01-{day:02}", "k": day} for day in range(1, 11)]).result()
    view = f"CREATE VIEW `{PROJECT}.d.v` AS SELECT day, k, name FROM `{TABLE}`"
    windowed = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY day) AS n FROM `{TABLE}`"
    ask(asking, view)
    ask(asking, f"CREATE VIEW `{PROJECT}.d.once` AS SELECT day, k FROM ({windowed}) AS x WHERE n = 1")
    since = [ScalarQueryParameter("since", "STRING", "2026-01-10")]

    def bytes_of(sql: str, **config: Any) -> int:
        job = start(asking, sql, dry_run=True, default_dataset=f"{PROJECT}.d", **config)
        return int(job.total_bytes_processed)

    assert bytes_of("SELECT k FROM t") == 10 * 8
    assert bytes_of("SELECT k FROM t WHERE day = DATE '2026-01-02'") == 8 + 8
    assert bytes_of("SELECT k FROM t WHERE day >= CAST(@since AS DATE)", query_parameters=since) == 8 + 8
    assert bytes_of("SELECT k FROM t WHERE day >= (SELECT MAX(day) FROM t)") == 10 * 16 + 10 * 8
    assert bytes_of("SELECT v.k FROM v WHERE v.day = DATE '2026-01-02'") == 8 + 8
    assert bytes_of("SELECT once.k FROM once WHERE once.day = DATE '2026-01-02'") == 10 * 16
    assert bytes_of("SELECT name FROM t WHERE day = DATE '2026-01-02'") == 8 + 2 + 2
    assert bytes_of("SELECT 1") == 0
    assert all("dryRun" not in job.config for job in server[0].service.jobs.values())


def test_query_that_would_cost_more_than_allowed_is_refused_before_it_runs(asking: Any) -> None:
    """docs/best-practices-costs: maximumBytesBilled fails the query without a charge; pricing: 10 MB at least."""
    load(asking, TABLE, [ROW]).result()
    failed = start(asking, f"SELECT k FROM `{TABLE}`", maximum_bytes_billed=1000)
    assert failed.error_result == {
        "reason": "bytesBilledLimitExceeded",
        "message": "Query exceeded limit for bytes billed: 1000. 10485760 or higher required.",
    }
    job = start(asking, f"SELECT k FROM `{TABLE}`", maximum_bytes_billed=scanned.LEAST_BILLED)
    assert (job.error_result, job.total_bytes_billed) == (None, scanned.LEAST_BILLED)
