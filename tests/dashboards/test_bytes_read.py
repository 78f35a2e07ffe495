"""Questions on the fake service, in both kinds of datasets: the local warehouse's rows, fewer bytes for fewer days."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from keras_matrix.dashboards.live.questions import EARLIEST_DAY, DashboardFilter, answer, questions
from keras_matrix.records.store import Results
from keras_matrix.uploader.local.warehouse import LocalWarehouse
from keras_matrix.uploader.outbox import Outbox
from keras_matrix.uploader.push import push
from keras_matrix.uploader.sql import views
from keras_matrix.uploader.warehouse import Options, Warehouse
from tests.dashboards.boards import stored, warehouse_of

pytestmark = [
    pytest.mark.process,  # a server on the loopback
    pytest.mark.google_client,
]
LATE = "2026-01-07"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return stored(tmp_path_factory.mktemp("bytes") / "results", nights=8)


@pytest.fixture(scope="module")
def local(results: Results) -> LocalWarehouse:
    return warehouse_of(results)


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["merged", "appended"]
)
def remote(
    request: pytest.FixtureRequest, results: Results, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warehouse]:
    pytest.importorskip("google.cloud.bigquery", reason="google-cloud-bigquery is not installed: extra `bigquery`")
    from keras_matrix.uploader.bigquery.client import connect
    from tests.uploader.service.server import Server

    with Server() as url, pytest.MonkeyPatch.context() as patched:
        patched.setenv("BIGQUERY_EMULATOR_HOST", url)
        patched.setenv("NO_GCE_CHECK", "true")
        opened = connect("some-project", "data", Options(append_only=request.param, first_day=EARLIEST_DAY))
        opened.create()
        push(results, opened, Outbox(Path(tmp_path_factory.mktemp("outbox"))))
        yield opened
        opened.close()


def test_every_question_has_the_rows_of_the_local_warehouse(local: Warehouse, remote: Warehouse) -> None:
    for question, choice in product(questions().values(), (DashboardFilter(), DashboardFilter(since=LATE))):
        assert answer(remote, question, choice) == answer(local, question, choice), question.name


def test_every_question_of_fewer_days_reads_fewer_bytes(remote: Warehouse) -> None:
    for question in questions().values():
        ever, late, never = (
            remote.bytes_read(question.sql, DashboardFilter(since=since).parameters(question.sql)) or 0
            for since in (EARLIEST_DAY, LATE, "2027-01-01")
        )
        assert 0 == never < late < 0.5 * ever, question.name


def test_a_view_of_fewer_days_reads_fewer_bytes(remote: Warehouse) -> None:
    from keras_matrix.uploader.bigquery.client import connect

    def read() -> dict[str, int]:
        return {name: remote.bytes_read(f"SELECT * FROM {name}") or 0 for name in views()}

    ever = read()
    renewing = connect("some-project", "data", Options(first_day=LATE))
    renewing.create()
    renewing.close()
    for name, late in read().items():
        assert 0 < late < 0.5 * ever[name]
