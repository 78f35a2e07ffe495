"""PyTorch's file is read as a stream."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from keras_matrix.records.traces import kineto
from keras_matrix.records.traces.request import TraceError
from tests.records.traces.synthetic import damaged


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 20])
def test_members_and_events_come_as_they_stand_however_the_file_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(kineto, "CHUNK_CHARACTERS", chunk)
    events = [{"name": 'a\n"}]{["', "ts": 12.5, "args": {"deep": [[1], {}]}}, {"name": "é"}, 17]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"first": 1.25e-3, "traceEvents": events, "last": {"a": []}}, indent=1))
    found = list(kineto.members(path))
    assert found == [("first", 1.25e-3), *(("traceEvents", event) for event in events), ("last", {"a": []})]


@pytest.mark.parametrize("chunk", [1, 7, 40, 1 << 20])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " : ")])
def test_values_that_are_read_together_are_those_that_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, separators: tuple[str, str]
) -> None:
    """Ends of objects occur within events, within texts and after the list."""
    monkeypatch.setattr(kineto, "CHUNK_CHARACTERS", chunk)
    events = [{"args": {"a": {"b": 1}, "c": [{}, {}]}, "name": "},{"}, {"args": {}, "n": 1}, {"name": '"},'}, {}] * 3
    path = tmp_path / "trace.json"
    after = {"a": {"b": {}}, "c": {}}
    path.write_text(json.dumps({"traceEvents": events, **after}, separators=separators))
    assert list(kineto.members(path)) == [*(("traceEvents", event) for event in events), *after.items()]


def test_a_packed_file_and_a_bare_list_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'[{"ph": "X"}, {"ph": "M"}]'))
    assert list(kineto.members(path)) == [("traceEvents", {"ph": "X"}), ("traceEvents", {"ph": "M"})]


@pytest.mark.parametrize("text", ["{}", '{"traceEvents": []}', "[]"])
def test_file_without_events_yields_no_events(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert list(kineto.members(path)) == []


def test_deeply_nested_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("[" * 100_000)
    with pytest.raises(TraceError, match=r"mine\.json: is not a complete Chrome trace: .*; record it again"):
        list(kineto.members(path))


def test_a_packed_file_that_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.json.gz"
    path.write_bytes(damaged(b'{"traceEvents": []}'))
    with pytest.raises(TraceError, match=r"mine\.json\.gz: cannot be read: "):
        list(kineto.members(path))


def test_a_value_without_end_is_not_read_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "CHUNK_CHARACTERS", 10)
    monkeypatch.setattr(kineto, "MAX_VALUE_CHARACTERS", 100)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"name": "' + "a" * 1000)
    with pytest.raises(TraceError, match="a value is incomplete"):
        list(kineto.members(path))
