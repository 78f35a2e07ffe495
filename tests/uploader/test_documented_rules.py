"""Pushes with documented rules of BigQuery that an emulator does not implement, with options of the fake service."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.bigquery import client as connecting
from keras_matrix.uploader.bigquery.jobs import RetryPolicy
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.cli.main import main
from keras_matrix.uploader.errors import NotAllowed, QuotaExceeded, SchemaMismatch
from keras_matrix.uploader.outbox import Outbox, seal_all
from keras_matrix.uploader.push import push
from keras_matrix.uploader.rows import of_record
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import Options
from tests.sessions import run_name
from tests.uploader.faulty import Fault, Proxy
from tests.uploader.service import problems
from tests.uploader.service.asking import MARKS
from tests.uploader.service.limits import ADMIN, DATA_EDITOR, DATA_VIEWER, DAY_S, JOB_USER, Quotas
from tests.uploader.service.server import Server
from tests.uploader.service.service import Service
from tests.uploader.stored import results_with

pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
pytestmark = MARKS
QUICK = RetryPolicy(tries=4, first_s=0.01, most_s=0.05)
ROWS = 53  # of one run
NIGHT_S = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()

Open = Callable[..., BigQueryWarehouse]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Open]]:
    """Start a service with options; return a function that opens a warehouse, as an account and through a proxy."""
    servers: list[Server] = []

    def started(**options: Any) -> Open:
        servers.append(Server(Service(**options)))
        url = servers[-1].__enter__()
        monkeypatch.setenv("NO_GCE_CHECK", "true")

        def opened(account: str = "owner", through: str = url, **options: Any) -> BigQueryWarehouse:
            monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", f"{through}/as/{account}")
            return connecting.connect("some-project", "data", Options(**options), QUICK)

        opened.url, opened.service = url, servers[-1].service  # type: ignore[attr-defined]
        return opened

    yield started
    for server in servers:
        server.__exit__()


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_with(tmp_path / "results", runs=1)


def sent(results: Results, warehouse: BigQueryWarehouse, name: str = "outbox") -> int:
    """Push and return the number of new rows."""
    return push(results, warehouse, Outbox(results.root.parent / name)).new


def complete(results: Results, warehouse: BigQueryWarehouse) -> bool:
    """Return whether the warehouse has the rows of the records."""
    return verify(results, warehouse, values=True).problems == ()


@pytest.mark.parametrize("append_only", [False, True])
def test_a_dataset_in_a_single_region_needs_no_location_after_init(
    serve: Callable[..., Open], results: Results, append_only: bool
) -> None:
    opened = serve(prompt_s=0.0)
    opened(location="europe-west3", append_only=append_only).create()
    warehouse = opened()
    assert sent(results, warehouse) == ROWS
    assert sent(results, warehouse, "another") == 0
    assert complete(results, warehouse)


@pytest.mark.parametrize("path", ["/upload/", "/jobs?"], ids=["load", "insert"])
def test_job_whose_response_was_lost_is_found_in_a_single_region(
    serve: Callable[..., Open], results: Results, path: str
) -> None:
    opened = serve()
    opened(location="europe-west3").create()
    lost: list[str] = []

    def plan(number: int, method: str, request: str) -> Fault | None:
        if path not in request or lost:
            return None
        lost.append(request)
        return Fault(reset=True, after=True)

    with Proxy(opened.url, plan) as url:  # type: ignore[attr-defined]
        assert sent(results, opened(through=url)) == ROWS
    assert lost
    assert complete(results, opened())


def test_deleted_rows_are_restored_after_the_outbox_is_removed(serve: Callable[..., Open], results: Results) -> None:
    opened = serve()
    warehouse = opened()
    warehouse.create()
    assert sent(results, warehouse) == ROWS
    warehouse._run("delete", "DELETE FROM `some-project.data.measurements` WHERE step IS NOT NULL")
    assert not complete(results, warehouse)
    shutil.rmtree(results.root.parent / "outbox")
    assert 0 < sent(results, warehouse) < ROWS
    assert complete(results, warehouse)


@pytest.mark.parametrize("append_only", [False, True])
def test_exceeded_quota_blocks_nothing_after_it_is_refilled(
    serve: Callable[..., Open], results: Results, append_only: bool
) -> None:
    now_s = [NIGHT_S]
    opened = serve(clock=lambda: now_s[0], quotas=Quotas(appends_per_table=0))
    warehouse = opened(append_only=append_only)
    warehouse.create()
    outbox = Outbox(results.root.parent / "outbox")
    with pytest.raises(QuotaExceeded, match="push again when the quota is refilled"):
        push(results, warehouse, outbox)
    assert len(outbox.pending()) == 4
    opened.service.limits.quotas = Quotas()  # type: ignore[attr-defined]
    now_s[0] += DAY_S
    assert push(results, warehouse, outbox).new == ROWS
    assert complete(results, warehouse)


@pytest.mark.parametrize("kind", ["load", "query"])
def test_errors_in_a_jobs_status_are_followed_by_a_new_job(
    serve: Callable[..., Open], results: Results, kind: str
) -> None:
    opened = serve()
    warehouse = opened()
    warehouse.create()
    outstanding = "Resources exceeded during query execution: Too many DML statements outstanding against table"
    failures = [problems.Refusal("resourcesExceeded", outstanding), problems.Refusal("backendError", "try again")]
    opened.service.fail(kind, *failures)  # type: ignore[attr-defined]
    assert sent(results, warehouse) == ROWS
    assert complete(results, warehouse)


def test_dml_error_in_the_sandbox_recommends_append_only(serve: Callable[..., Open], results: Results) -> None:
    opened = serve(sandbox=True, clock=lambda: NIGHT_S)
    warehouse = opened()
    warehouse.create()
    with pytest.raises(NotAllowed, match="uploader init --append-only"):
        sent(results, warehouse)


@pytest.mark.parametrize("append_only", [True, False])
def test_rows_of_expired_partitions_do_not_count_as_missing(
    serve: Callable[..., Open], tmp_path: Path, capsys: pytest.CaptureFixture[str], append_only: bool
) -> None:
    from google.cloud import bigquery

    now_s = [NIGHT_S]
    opened = serve(clock=lambda: now_s[0])
    warehouse = opened(append_only=append_only)
    expiring = bigquery.Dataset("some-project.data")
    expiring.default_partition_expiration_ms = 60 * DAY_S * 1000
    warehouse._client.create_dataset(expiring)
    warehouse.create()
    assert main(["init", "--to", warehouse.address]) == 0
    assert "days before 2025-11-03 are not retained: the dataset's partitions expire" in capsys.readouterr().out
    assert warehouse.retained_from() == "2025-11-03"
    results, outbox = results_with(tmp_path / "results", runs=3), Outbox(tmp_path / "outbox")
    with outbox.locked():
        seal_all([row for run in results.runs() for record in run.load()[0] for row in of_record(record)], outbox)
    now_s[0] += 61 * DAY_S  # after the batches were sealed
    later = opened()
    assert later.retained_from() == "2026-01-03"
    pushed = push(results, later, outbox)
    assert (pushed.new, pushed.expired, outbox.pending()) == (ROWS * 3 - 4, [run_name(0), run_name(1)], [])
    there = later.query("SELECT day, COUNT(*) AS n FROM cells GROUP BY day").dicts()
    assert [(str(row["day"]), row["n"]) for row in there] == [("2026-01-03", 3)]
    assert complete(results, later)


def test_dataset_of_an_older_version_is_reported_and_updated_by_migrate(
    serve: Callable[..., Open], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = serve()
    warehouse = opened()
    warehouse.create()
    warehouse._client.delete_table("some-project.data.lease")
    command = ["push", "--to", warehouse.address, "--results", str(results.root)]
    assert main(command) == 3
    assert "some-project.data.lease: is missing; create it with: uploader init" in capsys.readouterr().err
    assert main(["migrate", "--to", warehouse.address]) == 0
    assert "created the table lease\n" in capsys.readouterr().out
    assert main(command) == 0
    assert f"{ROWS} new rows" in capsys.readouterr().out


def test_missing_write_permission_is_named(serve: Callable[..., Open], results: Results) -> None:
    accounts = {
        "reader": JOB_USER | DATA_VIEWER,
        "writer": (JOB_USER | DATA_EDITOR) - {"tables.create"},
        "idle": DATA_EDITOR,
    }
    opened = serve(accounts=accounts)
    opened().create()
    for account, right in (("reader", "tables.create"), ("writer", "tables.create"), ("idle", "jobs.create")):
        outbox = Outbox(results.root.parent / account)
        with pytest.raises(NotAllowed, match=f"{right}.*uploader init prints the roles"):
            push(results, opened(account), outbox)
        assert len(outbox.pending()) == 4


def test_accounts_that_may_not_read_each_others_jobs_send_the_same_batches(
    serve: Callable[..., Open], results: Results
) -> None:
    least = JOB_USER | DATA_EDITOR
    opened = serve(accounts={"one": least, "two": least})
    opened().create()
    assert [sent(results, opened(name), name) for name in ("one", "two")] == [ROWS, 0]
    assert complete(results, opened())


def test_staging_tables_in_another_location_are_reported_before_a_row_is_sent(
    serve: Callable[..., Open], results: Results
) -> None:
    opened = serve(accounts={"owner": ADMIN})
    warehouse = opened(location="EU")
    warehouse.create()
    warehouse._client.delete_dataset("some-project.data_staging", delete_contents=True)
    from google.cloud import bigquery

    elsewhere = bigquery.Dataset("some-project.data_staging")
    elsewhere.location = "US"
    warehouse._client.create_dataset(elsewhere)
    with pytest.raises(SchemaMismatch, match=r"data_staging: is in US, some-project\.data in EU"):
        sent(results, opened())
