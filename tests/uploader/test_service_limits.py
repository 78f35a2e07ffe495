"""Pushes to the fake service where it is stricter than the emulator: errors of jobs, regions, permissions, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keras_matrix.records.store import Results
from keras_matrix.uploader.bigquery import client as connecting
from keras_matrix.uploader.bigquery.jobs import RetryPolicy
from keras_matrix.uploader.bigquery.warehouse import BigQueryWarehouse
from keras_matrix.uploader.errors import NotAllowed, QuotaExceeded
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.verify import verify
from keras_matrix.uploader.warehouse import Options
from tests.uploader.service.asking import MARKS
from tests.uploader.service.limits import DATA_EDITOR, DATA_VIEWER, JOB_USER
from tests.uploader.service.problems import Refusal
from tests.uploader.service.server import Server
from tests.uploader.service.service import Service
from tests.uploader.stored import results_with

pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
pytestmark = MARKS
POLICY = RetryPolicy(tries=4, first_s=0.01, most_s=0.02)
NOON_2026_01_02 = 1_767_355_200
DAY_S = 24 * 3600
Opens = Callable[..., BigQueryWarehouse]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_with(tmp_path / "results", runs=1, count=1)


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Opens the dataset of a service at a URL."""

    def opened(url: str, **options: object) -> BigQueryWarehouse:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", url)
        return connecting.connect("some-project", "benchmarks", Options(**options), POLICY)  # type: ignore[arg-type]

    return opened


def pushed(results: Results, warehouse: BigQueryWarehouse, name: str = "outbox") -> int:
    return push(results, warehouse, Outbox(results.root.parent / name)).new


@pytest.mark.parametrize("kind", ["load", "query"])
@pytest.mark.parametrize("reason", ["quotaExceeded", "billingNotEnabled", "accessDenied"])
def test_batch_whose_job_failed_is_sent_by_the_next_push(
    results: Results, opens: Opens, reason: str, kind: str
) -> None:
    """The service reports these in the job's status; a failed job must not block its batch."""
    server = Server()
    with server as url:
        warehouse = opens(url)
        warehouse.create()
        server.service.fail("load" if kind == "load" else "SCRIPT", Refusal(reason, "as if by the service"))
        with pytest.raises(QuotaExceeded if reason == "quotaExceeded" else NotAllowed, match="as if by the service"):
            pushed(results, warehouse)
        assert pushed(results, warehouse) > 0
        assert verify(results, warehouse, values=True).problems == ()
        warehouse.close()


@pytest.mark.parametrize("rights", [JOB_USER | DATA_VIEWER, DATA_EDITOR, JOB_USER], ids=["read", "no jobs", "no data"])
def test_missing_permission_is_named_and_batches_stay_pending(
    results: Results, opens: Opens, rights: frozenset[str]
) -> None:
    with Server(Service(accounts={"alice": rights})) as url:
        owner = opens(url)
        owner.create()
        with pytest.raises(NotAllowed, match=r"bigquery\.[a-zA-Z.]+ (denied|permission)"):
            pushed(results, opens(f"{url}/as/alice"))
        assert pushed(results, owner) > 0
        owner.close()


def test_sandbox_accepts_appended_rows_and_views_remove_duplicates(results: Results, opens: Opens) -> None:
    with Server(Service(sandbox=True, clock=lambda: NOON_2026_01_02)) as url:
        warehouse = opens(url, append_only=True)
        warehouse.create()
        assert [pushed(results, opens(url), name) for name in ("one", "one", "two")][1:] == [0, 0]
        assert verify(results, warehouse, values=True).problems == ()
        warehouse.close()
