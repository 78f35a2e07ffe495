"""Appending through the Storage Write API: rows fit its types, and a batch that was committed is not appended again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from records.store import Results
from tests.uploader.stored import results_with
from uploader import connect as connecting
from uploader.outbox import Outbox
from uploader.push import push
from uploader.retry import Patience
from uploader.rows import of_record
from uploader.schema import TABLES
from uploader.verify import verify
from uploader.warehouse import BIGQUERY, Options

storage_write = pytest.importorskip("uploader.storage_write", reason="cannot happen: ours")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_with(tmp_path / "results", runs=1)


def test_a_row_is_told_as_the_api_takes_it(results: Results) -> None:
    row = next(of_record(results.runs()[0].load()[0][0]))
    found = storage_write.fitting(row.table, json.loads(row.line))
    assert found["day"] == 20454
    assert found["started_at"] == 1767232800_000000
    assert json.loads(found["versions"]) == {"jax": "0.10.0", "keras": "3.15.0"}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_has_a_message_of_its_rows(table: object, results: Results) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed: extra `bigquery`")
    kind, descriptor = storage_write.row_type(table)
    assert [one.name for one in descriptor.field] == [column.name for column in table.columns]  # type: ignore[attr-defined]
    assert kind().SerializeToString() == b""


@pytest.mark.emulator
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning:google", "ignore::DeprecationWarning:google")
def test_what_is_appended_arrives_once_also_when_the_mark_was_lost(results: Results, emulated: str) -> None:
    found = BIGQUERY.fullmatch(emulated)
    assert found is not None
    options = Options(append_only=True, storage_write=True)
    appending = connecting.connect(found["project"], found["dataset"], options, Patience(tries=2, first_s=0.01))
    appending.create()
    outbox = Outbox(results.root.parent / "outbox")
    push(results, appending, outbox)
    assert verify(results, appending, values=True).problems == ()
    push(results, appending, Outbox(results.root.parent / "another"))
    assert verify(results, appending, values=True).problems == ()
    appending.close()
