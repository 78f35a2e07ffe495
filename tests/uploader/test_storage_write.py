"""Appending through the Storage Write API: rows fit its types, and a batch that was committed is not appended again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from records.store import Results
from tests.uploader.stored import Killed, results_with
from uploader import connect as connecting
from uploader.errors import BadInput, RowsRefused
from uploader.outbox import Batch, Outbox
from uploader.push import push
from uploader.retry import Patience
from uploader.rows import of_record
from uploader.schema import MEASUREMENTS, TABLES
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


class Streams:
    """A write client that keeps rows by stream and offset as the API does, and ends where it is told to."""

    def __init__(self) -> None:
        self.rows: dict[str, list[bytes]] = {}
        self.finalised: set[str] = set()
        self.committed: set[str] = set()
        self.dies_at: str | None = None

    def create_write_stream(self, *, parent: str, write_stream: Any, timeout: float) -> Any:
        name = f"{parent}/streams/{len(self.rows)}"
        self.rows[name] = []
        return self._answer("create", name=name)

    def get_write_stream(self, *, name: str, timeout: float) -> Any:
        return SimpleNamespace(name=name, commit_time=name in self.committed)

    def append_rows(self, requests: Iterator[Any], *, timeout: float) -> Iterator[Any]:
        for request in requests:
            yield self._answer("append", row_errors=[], error=self._taken(request))

    def _taken(self, request: Any) -> Any:
        held, offset = self.rows[request.write_stream], request.offset
        if request.write_stream in self.finalised:
            return SimpleNamespace(code=3, message="Entity: a stream; STREAM_FINALIZED")
        if offset < len(held):
            return SimpleNamespace(code=storage_write.ALREADY_EXISTS, message="the offset is there")
        assert offset == len(held)
        held.extend(request.proto_rows.rows.serialized_rows)
        return SimpleNamespace(code=0, message="")

    def finalize_write_stream(self, *, name: str, timeout: float) -> Any:
        self.finalised.add(name)
        return self._answer("finalise")

    def batch_commit_write_streams(self, asked: dict[str, Any], *, timeout: float) -> Any:
        self.committed.update(asked["write_streams"])
        return self._answer("commit", stream_errors=[])

    def _answer(self, what: str, **told: Any) -> Any:
        if self.dies_at == what:
            raise Killed
        return SimpleNamespace(**told)

    def shown(self) -> list[bytes]:
        """Return the rows that readers see."""
        return [row for name in self.rows if name in self.committed for row in self.rows[name]]


@pytest.fixture
def batch(results: Results, tmp_path: Path) -> Batch:
    outbox = Outbox(tmp_path / "sealed")
    lines = [row.line for row in of_record(results.runs()[0].load()[0][0]) if row.table is MEASUREMENTS]
    with outbox.locked():
        return outbox.seal(MEASUREMENTS, lines)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    pytest.importorskip("google.cloud.bigquery_storage_v1", reason="not installed: extra `bigquery`")
    made = Streams()
    monkeypatch.setattr(storage_write, "_client", lambda credentials: made)
    monkeypatch.setattr(storage_write, "REQUEST_BYTES", 500)  # several requests a batch
    return made


@pytest.mark.parametrize("step", ["create", "append", "finalise", "commit"])
def test_whatever_answer_was_lost_each_row_is_shown_once(streams: Streams, batch: Batch, step: str) -> None:
    patience = Patience(tries=1)
    streams.dies_at = step
    with pytest.raises(Killed):
        storage_write.append("p.d.measurements_appended", batch, patience)
    streams.dies_at = None
    for _ in range(2):
        assert storage_write.append("p.d.measurements_appended", batch, patience) == 16
    assert len(streams.shown()) == len(set(streams.shown())) == 16
    assert len(streams.committed) == 1


def test_rows_that_are_refused_are_told_and_no_stream_is_committed(
    streams: Streams, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = SimpleNamespace(
        row_errors=[SimpleNamespace(message="value: out of range")], error=SimpleNamespace(message="")
    )
    monkeypatch.setattr(Streams, "append_rows", lambda self, requests, timeout: iter([bad]))
    with pytest.raises(RowsRefused, match="value: out of range"):
        storage_write.append("p.d.measurements_appended", batch, Patience(tries=1))
    assert streams.committed == set()


def test_an_emulator_without_a_port_for_this_api_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:9050")
    monkeypatch.setenv("BIGQUERY_EMULATOR_GRPC", "")
    with pytest.raises(BadInput, match=r"--storage-write: .* names an emulator; set BIGQUERY_EMULATOR_GRPC"):
        storage_write._client(None)


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
