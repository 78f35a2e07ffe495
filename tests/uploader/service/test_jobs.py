"""Jobs of the fake service with the real client: IDs, locations, errors, permissions, quotas, the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.uploader.faulty import Fault, Proxy
from tests.uploader.service.asking import MARKS, ONCE, PROJECT, ask, client, load, start
from tests.uploader.service.limits import DATA_VIEWER, JOB_USER, Quotas
from tests.uploader.service.problems import Refusal
from tests.uploader.service.server import Server
from tests.uploader.service.service import Service

pytestmark = MARKS
TABLE = "some-project.d.t"
CREATE = f"CREATE TABLE `{TABLE}` (day DATE NOT NULL, k INT64) PARTITION BY day"
DAY = "2026-01-01"
NOON_2026_01_02 = 1_767_355_200
DAY_S = 24 * 3600


@contextmanager
def serving(location: str = "US", **options: Any) -> Iterator[tuple[Server, str, Any]]:
    """Serve a dataset with one table; yields server, URL and a client with all permissions."""
    server = Server(Service(**options))
    with server as url:
        from google.cloud import bigquery

        owner = client(url)
        dataset = bigquery.Dataset(f"{PROJECT}.d")
        dataset.location = location
        owner.create_dataset(dataset)
        ask(owner, CREATE)
        yield server, url, owner
        owner.close()


def refusal(error: pytest.ExceptionInfo[Any]) -> tuple[int, str]:
    return error.value.code, error.value.errors[0]["reason"]


def test_second_job_of_an_id_is_refused_with_409() -> None:
    """docs/reference/rest/v2/JobReference: the id must be unique within the project; the service answers duplicate."""
    from google.api_core.exceptions import Conflict

    with serving() as (_, _, asking):
        start(asking, "SELECT 1", job_id="one")
        with pytest.raises(Conflict, match=r"Already Exists: Job some-project:US\.one") as error:
            start(asking, "SELECT 1", job_id="one")
        assert refusal(error) == (409, "duplicate")
        assert asking.get_job("one", **ONCE).state == "DONE"


def test_job_outside_of_the_multi_regions_is_found_only_with_its_location() -> None:
    """docs/reference/rest/v2/jobs/get: location is required except for the US and EU multi-regions."""
    from google.api_core.exceptions import NotFound

    with serving("europe-west1") as (_, _, asking):
        job = start(asking, f"SELECT COUNT(*) FROM `{TABLE}`", job_id="one")
        assert job.location == "europe-west1"
        with pytest.raises(NotFound, match=r"Not found: Job some-project:one"):
            asking.get_job("one", **ONCE)
        with pytest.raises(NotFound, match=r"Not found: Job some-project:US\.one"):
            asking.get_job("one", location="US", **ONCE)
        assert asking.get_job("one", location="europe-west1", **ONCE).state == "DONE"


def test_query_in_another_location_than_its_dataset_finds_no_dataset() -> None:
    """docs/locations: a query runs in the location of the datasets that it references."""
    with serving("europe-west1") as (_, _, asking):
        job = start(asking, f"SELECT * FROM `{TABLE}`", location="US")
        assert job.error_result["reason"] == "notFound"
        assert job.error_result["message"] == "Not found: Dataset some-project:d was not found in location US"


def test_load_in_another_location_than_its_dataset_is_refused() -> None:
    """docs/locations: data is loaded where the dataset is."""
    from google.api_core.exceptions import NotFound

    with serving("europe-west1") as (_, _, asking):
        assert load(asking, TABLE, [{"day": DAY}]).location == "europe-west1"
        with pytest.raises(NotFound, match="Dataset some-project:d was not found in location US"):
            asking.load_table_from_json([{"day": DAY}], TABLE, location="US", num_retries=0)


def test_bad_rows_are_errors_of_the_job_and_no_row_is_loaded() -> None:
    """docs/reference/rest/v2/Job, JobStatus: errorResult is the final error, errors lists its causes."""
    with serving() as (_, _, asking):
        lines: list[dict[str, Any]] = [
            {"day": DAY, "k": 1},
            {"day": DAY, "k": "much"},
            {"k": 2},
            {"day": DAY, "was": 1},
            {"day": None},
        ]
        job = load(asking, TABLE, lines)
        assert (job.state, job.error_result["reason"]) == ("DONE", "invalid")
        assert job.error_result["message"].startswith(
            "Error while reading data, error message: JSON table encountered too many errors, giving up. "
            "Rows: 5; errors: 4."
        )
        found = [one["message"].partition("row starting at position ")[2] for one in job.errors[2:]]
        assert found == [
            "30: Could not convert value 'string_value: \"much\"' to integer. Field: k; Value: much",
            "65: Missing required field: day.",
            "74: No such field: was.",
            "106: Only optional fields can be set to NULL. Field: day; Value: NULL",
        ]
        assert ask(asking, f"SELECT COUNT(*) FROM `{TABLE}`") == [(0,)]


@pytest.mark.parametrize(
    ("reason", "code"),
    [("quotaExceeded", 403), ("billingNotEnabled", 403), ("resourcesExceeded", 400), ("backendError", 500)],
)
def test_injected_error_ends_one_job_of_its_kind(reason: str, code: int) -> None:
    from google.api_core.exceptions import GoogleAPICallError

    with serving() as (server, _, asking):
        server.service.fail("load", Refusal(reason, "as if by the service"))
        ask(asking, "SELECT 1")
        job = load(asking, TABLE, [{"day": DAY}])
        assert (job.state, job.error_result["reason"]) == ("DONE", reason)
        with pytest.raises(GoogleAPICallError, match="as if by the service") as error:
            job.result(**ONCE)
        assert error.value.code == code
        assert load(asking, TABLE, [{"day": DAY}]).result().output_rows == 1
        assert [one.error is None for one in server.service.jobs_of("load")] == [False, True]


def test_loads_past_the_quota_of_a_day_fail_on_the_job_and_failed_ones_count() -> None:
    """quotas, standard tables: table operations a day, failed jobs included; refilled over time."""
    now = [NOON_2026_01_02]
    with serving(quotas=Quotas(appends_per_table=2), clock=lambda: now[0]) as (_, _, asking):
        jobs = [load(asking, TABLE, lines) for lines in ([{"day": DAY}], [{"k": 1}], [{"day": DAY}])]
        reasons = [(job.error_result or {}).get("reason") for job in jobs]
        assert reasons == [None, "invalid", "quotaExceeded"]
        assert (
            jobs[2]
            .error_result["message"]
            .startswith("Quota exceeded: Your table exceeded quota for imports or query appends per table.")
        )
        now[0] += DAY_S
        assert load(asking, TABLE, [{"day": DAY}]).error_result is None


@pytest.mark.parametrize(
    ("quotas", "reason"),
    [(Quotas(requests=2), "rateLimitExceeded"), (Quotas(jobs=1), "jobRateLimitExceeded")],
)
def test_requests_above_the_rate_are_refused_at_insert(quotas: Quotas, reason: str) -> None:
    """quotas, API requests: requests a second and user; error-messages: rateLimitExceeded, jobRateLimitExceeded."""
    from google.api_core.exceptions import GoogleAPICallError

    now = [NOON_2026_01_02]
    with serving(clock=lambda: now[0]) as (server, _, asking):
        server.service.limits.quotas = quotas
        now[0] += 1
        with pytest.raises(GoogleAPICallError, match="Exceeded rate limits") as error:
            _ = [start(asking, "SELECT 1") for _ in range(3)]
        assert refusal(error)[1] == reason
        now[0] += 1
        assert start(asking, "SELECT 1").error_result is None


def test_sandbox_refuses_dml_and_streaming_and_takes_load_jobs() -> None:
    """docs/sandbox, limitations: no DML, no streaming; error-messages: billingNotEnabled."""
    from google.api_core.exceptions import Forbidden

    with serving(sandbox=True, clock=lambda: NOON_2026_01_02) as (_, _, asking):
        assert load(asking, TABLE, [{"day": DAY, "k": 1}]).result().output_rows == 1
        for sql in (
            f"INSERT INTO `{TABLE}` (day) VALUES (DATE '{DAY}')",
            f"MERGE `{TABLE}` T USING `{TABLE}` S ON FALSE WHEN NOT MATCHED THEN INSERT ROW",
            f"DELETE FROM `{TABLE}` WHERE TRUE",
            f"BEGIN TRANSACTION; DELETE FROM `{TABLE}` WHERE TRUE; COMMIT TRANSACTION",
        ):
            assert start(asking, sql).error_result["reason"] == "billingNotEnabled"
        with pytest.raises(Forbidden, match="Streaming insert is not allowed in the free tier") as error:
            asking.insert_rows_json(TABLE, [{"day": DAY}], **ONCE)
        assert refusal(error) == (403, "billingNotEnabled")
        assert ask(asking, f"SELECT COUNT(*) FROM `{TABLE}`") == [(1,)]


def test_sandbox_removes_rows_of_old_days_on_load_and_tables_and_views_after_60_days() -> None:
    """docs/sandbox, limitations: tables, views and partitions expire after 60 days."""
    from google.api_core.exceptions import NotFound

    now = [NOON_2026_01_02]
    with serving(sandbox=True, clock=lambda: now[0]) as (_, _, asking):
        ask(asking, f"CREATE VIEW `{PROJECT}.d.v` AS SELECT k FROM `{TABLE}`")
        job = load(asking, TABLE, [{"day": "2025-11-01", "k": 1}, {"day": "2025-12-31", "k": 2}])
        assert job.result().output_rows == 2
        assert ask(asking, f"SELECT k FROM `{PROJECT}.d.v`") == [(2,)]
        table = asking.get_table(TABLE)
        assert table.time_partitioning.expiration_ms == 60 * DAY_S * 1000
        assert table.expires.timestamp() == NOON_2026_01_02 + 60 * DAY_S
        now[0] += 60 * DAY_S
        for name in (TABLE, f"{PROJECT}.d.v"):
            with pytest.raises(NotFound):
                asking.get_table(name, **ONCE)


def test_staging_tables_expire_with_their_datasets_default() -> None:
    """docs/reference/rest/v2/datasets: defaultTableExpirationMs is the lifetime of tables created later."""
    from google.cloud import bigquery

    now = [NOON_2026_01_02]
    with serving(clock=lambda: now[0]) as (_, _, asking):
        dataset = bigquery.Dataset(f"{PROJECT}.d_staging")
        dataset.default_table_expiration_ms = DAY_S * 1000
        asking.create_dataset(dataset)
        schema = [bigquery.SchemaField("k", "INT64")]
        load(asking, f"{PROJECT}.d_staging.s", [{"k": 1}], schema=schema).result()
        assert [one.table_id for one in asking.list_tables("d_staging")] == ["s"]
        now[0] += DAY_S
        assert list(asking.list_tables("d_staging")) == []


def test_account_that_may_only_run_jobs_sees_its_own_jobs_alone() -> None:
    """docs/access-control: roles/bigquery.jobUser has jobs.create; jobs.get is for the jobs of others."""
    from google.api_core.exceptions import Forbidden

    with serving(accounts={"alice": JOB_USER, "bob": JOB_USER}) as (_, url, owner):
        alice, bob = client(url, "alice"), client(url, "bob")
        start(alice, "SELECT 1", job_id="hers")
        assert alice.get_job("hers", **ONCE).user_email == "alice"
        assert owner.get_job("hers", **ONCE).state == "DONE"
        with pytest.raises(Forbidden, match=r"bigquery\.jobs\.get") as error:
            bob.get_job("hers", **ONCE)
        assert refusal(error) == (403, "accessDenied")
        assert [job.job_id for job in alice.list_jobs()] == ["hers"]
        assert list(bob.list_jobs()) == []


def test_missing_permission_of_a_read_only_account_is_named() -> None:
    """docs/access-control: DML and load jobs need tables.updateData; a job that lacks it ends with accessDenied."""
    with serving(accounts={"reader": JOB_USER | DATA_VIEWER, "runner": JOB_USER}) as (_, url, _):
        reader, runner = client(url, "reader"), client(url, "runner")
        assert ask(reader, f"SELECT COUNT(*) FROM `{TABLE}`") == [(0,)]
        for job in (load(reader, TABLE, [{"day": DAY}], schema=reader.get_table(TABLE).schema), start(reader, INSERT)):
            assert job.error_result["reason"] == "accessDenied"
            assert (
                "Permission bigquery.tables.updateData denied on table some-project:d.t"
                in (job.error_result["message"])
            )
        job = start(runner, f"SELECT * FROM `{TABLE}`")
        assert "User does not have permission to query table some-project:d.t" in job.error_result["message"]


@pytest.mark.parametrize(
    ("rights", "permission"),
    [
        (DATA_VIEWER, "jobs.create"),
        (JOB_USER | {"tables.updateData", "tables.getData"}, "tables.get"),
        (JOB_USER | DATA_VIEWER, "datasets.create"),
    ],
)
def test_missing_permission_is_named(rights: frozenset[str], permission: str) -> None:
    """docs/access-control: the permissions of each method."""
    from google.api_core.exceptions import Forbidden

    asks = {
        "jobs.create": lambda asking: start(asking, "SELECT 1"),
        "tables.get": lambda asking: asking.get_table(TABLE, **ONCE),
        "datasets.create": lambda asking: asking.create_dataset("other", **ONCE),
    }
    with serving(accounts={"alice": rights}) as (_, url, _), pytest.raises(Forbidden) as error:
        asks[permission](client(url, "alice"))
    assert refusal(error) == (403, "accessDenied")
    assert f"bigquery.{permission}" in str(error.value)


def test_proxy_in_front_loses_answers_and_the_job_is_there() -> None:
    with serving() as (server, url, _):
        proxy = Proxy(url, lambda number, method, path: Fault(reset=True, after=True) if number == 0 else None)
        with proxy as spoiled:
            asking = client(spoiled)
            with pytest.raises(Exception, match="Connection"):
                start(asking, "SELECT 1", job_id="lost")
            assert asking.get_job("lost", **ONCE).state == "DONE"
        assert [(one.method, one.path) for one in server.requests[-2:]] == [
            ("POST", "/projects/some-project/jobs"),
            ("GET", "/projects/some-project/jobs/lost"),
        ]


INSERT = f"INSERT INTO `{TABLE}` (day) VALUES (DATE '{DAY}')"
