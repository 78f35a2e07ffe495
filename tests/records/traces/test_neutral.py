"""The neutral trace, written and read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Flow, FlowEnd, Head, Track, TrackKind, covered
from keras_matrix.records.traces.request import TraceError
from tests.records.traces.synthetic import damaged, span

HEAD = Head("torch", 2, "cpu", 1)
SPANS = [
    span("step 1", 0, 100, TrackKind.STEPS, step=1),
    span('aten::"mm"\n', 1.5, 2.25, op="aten::mm", phase="forward", layer="block/dense", step=1),
    span("gloo:all_reduce", 50, 1, TrackKind.COMMUNICATION, worker=1, lane=2, phase="communication"),
]
FLOWS = [
    Flow("launch", FlowEnd(Track(0, TrackKind.COMPUTE), 1500), FlowEnd(Track(1, TrackKind.COMMUNICATION, 2), 50_000))
]


def test_written_text_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, HEAD, SPANS, FLOWS)
    assert neutral.head_of(path) == HEAD
    assert list(neutral.spans(path)) == SPANS
    assert list(neutral.flows(path)) == FLOWS


def test_spans_with_equal_names_are_distinguished_by_other_fields(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    found = [
        span("a", 0.001, 0.002, step=0),
        span("a", 0.001, 0.002, step=1),
        span("a", 0.001, 0.002, op="b"),
        span("a", 0.001, 0.002, layer="dense"),
        span("a", 0.001, 0.002, phase="forward"),
        span("a", 0.001, 0.002, TrackKind.HOST),
        span("a", 0.001, 0.002, worker=1),
        span("a", -1_000_000.003, 1_000_000.004, step=12),
        span("a", 0.001, 0.002),
    ]
    neutral.write(path, HEAD, found)
    assert list(neutral.spans(path)) == found
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [(e["args"].get("step"), e["cat"]) for e in events if e["ph"] == "X"] == [
        (one.step, one.phase or one.track.kind) for one in found
    ]


def test_more_tracks_of_a_kind_than_there_can_be_end_on_its_last_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, HEAD, [span("a", 0, 1, lane=lane) for lane in (998, 999, 1000, 5000)])
    assert [one.track for one in neutral.spans(path)] == [
        Track(0, TrackKind.COMPUTE, at) for at in (998, 999, 999, 999)
    ]


def test_the_file_is_one_chrome_trace_whose_tracks_have_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, HEAD, SPANS, FLOWS)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] in ("thread_name", "process_name")}
    assert names == {"torch worker 0", "torch worker 1", "steps", "compute", "communication 3"}
    assert {(e["ts"], e["dur"], e["cat"]) for e in events if e["ph"] == "X"} == {
        (0, 100, "steps"),
        (1.5, 2.25, "forward"),
        (50, 1, "communication"),
    }
    assert [(e["ph"], e["id"], e["ts"]) for e in events if e["ph"] in "sf"] == [("s", 0, 1.5), ("f", 0, 50)]


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, Head("jax", 0, "cpu"), [])
    assert (neutral.head_of(path).steps, list(neutral.spans(path))) == (None, [])


def test_uncompressed_trace_is_valid_json(tmp_path: Path) -> None:
    packed, plain = tmp_path / "trace.json.gz", tmp_path / "full_trace.ctf"
    neutral.write(packed, HEAD, SPANS)
    neutral.plain(packed, plain)
    assert json.loads(plain.read_text())["otherData"]["backend"] == "torch"


def test_a_trace_that_breaks_off_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, HEAD, SPANS * 1000)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TraceError, match="is damaged"):
        list(neutral.spans(path))


def test_a_trace_whose_bytes_were_changed_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(damaged(b"{}"))
    with pytest.raises(TraceError, match=r"trace\.json\.gz: is "):
        neutral.head_of(path)
    with pytest.raises(TraceError, match="is damaged"):
        neutral.plain(path, tmp_path / "plain.json")
    assert not neutral.is_one(path)


@pytest.mark.parametrize(
    "line",
    [
        '{"ph":"X","pid":0,"tid":0,"ts":1e999,"dur":0,"name":"a","args":{}}',
        '{"ph":"X","pid":0,"tid":0,"ts":0,"dur":1,"name":"a","args":' + "[" * 5000,
    ],
)
def test_line_that_python_reads_otherwise_is_reported_as_damage(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, HEAD, [])
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + f"{line},\n".encode()))
    with pytest.raises(TraceError, match="is damaged"):
        [*neutral.spans(path), *neutral.flows(path)]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> object:
        yield SPANS[0]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        neutral.write(tmp_path / "trace.json.gz", HEAD, failing())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0), ([(0, 1), (3, 4)], 2), ([(3, 5), (0, 4)], 5), ([(0, 9), (1, 2)], 9)],
)
def test_overlapping_spans_are_covered_once(spans: list[tuple[float, float]], expected: float) -> None:
    assert covered(spans) == expected
