"""Several files of a profiler are converted to one trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from keras_matrix.records.traces import conversion, neutral
from keras_matrix.records.traces.neutral import TrackKind
from keras_matrix.records.traces.request import TRACE_NAME, TraceError
from tests.records.traces.synthetic import chrome, event, flow, mark, message, plane, step_of_torch


def test_files_of_workers_are_one_trace_in_the_machines_clock(tmp_path: Path) -> None:
    # The second worker's profiler counts from elsewhere: its marks of the clock show by how much.
    late = [mark("clock:5000000", 900_000, 1), mark("clock:5100000", 900_150, 1), *step_of_torch(900_500)]
    early = [mark("clock:5000000", 0, 1), *step_of_torch(500)]
    chrome(tmp_path / "epoch2.worker0.json", early)
    chrome(tmp_path / "epoch2.worker1.json", late)
    files = conversion.files_in(tmp_path)
    head = conversion.make(files, tmp_path / TRACE_NAME, "torch")
    found = list(neutral.spans(tmp_path / TRACE_NAME))
    steps = [(one.track.worker, one.start_ns) for one in found if one.track.kind is TrackKind.STEPS]
    assert (head.workers, head.steps, head.epochs, head.device) == (2, 1, 1, "cpu")
    assert steps == [(0, 0), (1, 0)]


def test_binary_files_are_one_trace_in_the_machines_clock_too(tmp_path: Path) -> None:
    for worker, begin_us, device in ((0, 10, "/host:CPU"), (1, 700, "/device:GPU:0")):
        lines = {"main": [("kbm:clock:5000000", begin_us, 1, {}), ("kbm:step:1", begin_us + 3, 9, {})]}
        planes = [plane("/host:main", lines), plane(device, {"Stream": [("a:Mul", begin_us + 4, 2, {})]})]
        (tmp_path / f"epoch2.worker{worker}.xplane.pb").write_bytes(message(*planes))
    head = conversion.make(conversion.files_in(tmp_path), tmp_path / TRACE_NAME, "jax")
    found = [(one.track.worker, one.track.kind, one.start_ns) for one in neutral.spans(tmp_path / TRACE_NAME)]
    assert (head.workers, head.steps, head.epochs, head.device) == (2, 1, 1, "gpu")
    assert found == [
        (worker, kind, at) for worker in (0, 1) for kind, at in ((TrackKind.STEPS, 0), (TrackKind.COMPUTE, 1000))
    ]


def test_epochs_of_a_worker_lie_behind_each_other(tmp_path: Path) -> None:
    for epoch, at in ((1, 0), (3, 50_000)):
        events = [mark(f"clock:{7_000_000 + at * 1000}", 10, 1), *step_of_torch(20, number=1 + epoch // 2)]
        chrome(tmp_path / f"epoch{epoch}.worker0.json", events)
    head = conversion.make(conversion.files_in(tmp_path), tmp_path / TRACE_NAME, "torch")
    steps = [one for one in neutral.spans(tmp_path / TRACE_NAME) if one.track.kind is TrackKind.STEPS]
    assert (head.steps, head.epochs) == (2, 2)
    assert [(one.step, one.start_ns) for one in steps] == [(1, 0), (2, 50_000_000)]


def test_files_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("epoch10.worker0.json", "epoch2.worker10.json", "epoch2.worker9.json", "names.json"):
        (tmp_path / name).write_text("{}")
    assert [path.name for path in conversion.files_in(tmp_path)] == [
        "epoch2.worker9.json",
        "epoch2.worker10.json",
        "epoch10.worker0.json",
    ]


def test_a_file_that_is_not_ours_begins_at_zero(tmp_path: Path) -> None:
    path = chrome(tmp_path / "mine.json", [event("aten::mm", 1234.5, 6)])
    head = conversion.make([path], tmp_path / TRACE_NAME, "torch")
    assert (head.steps, [one.start_ns for one in neutral.spans(tmp_path / TRACE_NAME)]) == (None, [0])


def test_flows_are_brought_into_the_machines_clock_too(tmp_path: Path) -> None:
    events = [mark("clock:5000000", 0, 1), *step_of_torch(500), flow("s", 1, 515), flow("f", 1, 542)]
    conversion.make([chrome(tmp_path / "mine.json", events)], tmp_path / TRACE_NAME, "torch")
    (found,) = neutral.flows(tmp_path / TRACE_NAME)
    assert (found.source.at_ns, found.target.at_ns) == (15_000, 42_000)


def test_a_neutral_trace_packed_or_plain_is_taken_as_it_is(tmp_path: Path) -> None:
    packed, plain, again = tmp_path / TRACE_NAME, tmp_path / "full_trace.ctf", tmp_path / "again.json.gz"
    events = [*step_of_torch(500), flow("s", 1, 515), flow("f", 1, 542)]
    conversion.make([chrome(tmp_path / "mine.json", events)], packed, "torch")
    neutral.plain(packed, plain)
    for path in (packed, plain):
        conversion.make_of(path, again)
        assert gzip.decompress(again.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize("number", [neutral.MOST_WORKERS, neutral.MOST_WORKERS - 1])
def test_of_devices_as_many_are_drawn_as_a_trace_may_have_workers(tmp_path: Path, number: int) -> None:
    path, target = tmp_path / "mine.xplane.pb", tmp_path / TRACE_NAME
    path.write_bytes(message(plane(f"/device:GPU:{number}", {"Stream": [("sgemm", 0, 5, {})]})))
    if number < neutral.MOST_WORKERS:
        assert conversion.make([path], target, "jax").workers == neutral.head_of(target).workers == number + 1
    else:
        with pytest.raises(TraceError, match=f"contains an event out of range: 'sgemm' on device {number} "):
            conversion.make([path], target, "jax")


def test_times_since_1970_and_ends_before_their_beginnings_are_read(tmp_path: Path) -> None:
    since_1970_us = 1.9e15
    events = [event("aten::mm", since_1970_us + at, long) for at, long in ((0, 32), (64, -32))]
    conversion.make_of(chrome(tmp_path / "mine.json", events), tmp_path / TRACE_NAME)
    found = [(one.start_ns, one.duration_ns) for one in neutral.spans(tmp_path / TRACE_NAME)]
    assert found == [(0, 32_000), (64_000, 0)]


def test_empty_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="contains no file of a profiler"):
        conversion.make([], tmp_path / TRACE_NAME, "jax")
