"""The picture of one step of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.dashboards.charts import trace_timeline
from keras_matrix.dashboards.charts.picture import Area, Segment, Word
from keras_matrix.dashboards.charts.trace_timeline import MOST_BARS, MOST_TRACKS, NARROW, WIDE, StepSpans, draw, step_of
from keras_matrix.records.traces import neutral
from keras_matrix.records.traces.neutral import Head, Span, TrackKind
from tests.dashboards.charts.drawn import drawn
from tests.records.traces.synthetic import span


def step_in(tmp_path: Path, spans: list[Span]) -> StepSpans:
    path = tmp_path / "trace.json.gz"
    neutral.write(path, Head("torch", 1, "gpu", 3), spans)
    found = step_of(path)
    assert found is not None
    return found


def three_steps() -> list[Span]:
    """The host launches a step of 100 us in 20 us."""
    found = []
    for number in (1, 2, 3):
        found.append(span(f"step {number}", 20 * number, 20, TrackKind.STEPS, step=number))
        found.append(span("aten::mm", 20 * number, 18, TrackKind.HOST, step=number, phase="forward"))
        found.append(span("cudaLaunchKernel", 20 * number + 2, 5, TrackKind.HOST, step=number))
        found.append(span("gemm", 100 * number, 90, step=number, phase="forward"))
        found.append(span("copy", 100 * number + 90, 10, TrackKind.COPY, step=number))
    return found


def test_the_step_in_the_middle_is_drawn_with_what_its_thread_and_its_device_did(tmp_path: Path) -> None:
    found = step_in(tmp_path, three_steps())
    assert (found.number, found.begin_ns, found.end_ns) == (2, 40_000, 300_000)
    assert [(track.name, [one.name for one in spans]) for track, spans in found.tracks] == [
        ("host", ["aten::mm"]),  # the call within it is not drawn
        ("compute", ["gemm"]),
        ("copy", ["copy"]),
    ]
    assert found.colours == ["forward", "copy"]
    assert found.largest == (("gemm", pytest.approx(90e-6), 1), ("copy", pytest.approx(10e-6), 1))


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_bars_are_where_their_operations_were(tmp_path: Path, size: trace_timeline.TimelineSize) -> None:
    picture, _ = draw(step_in(tmp_path, three_steps()), size)
    scale = (size.width - size.names - trace_timeline.RIGHT) / 260
    host, compute, _ = drawn(picture, Area)
    assert (host.x, host.width) == (size.names, pytest.approx(18 * scale, abs=0.01))
    assert (compute.x, compute.tip) == (pytest.approx(size.names + 160 * scale, abs=0.01), "gemm: 90.0 us")
    assert [word.text for word in drawn(picture, Word, "work")] == ["host", "compute", "copy"]
    assert "gemm" in [word.text for word in drawn(picture, Word, "name") if word.y == compute.y + 13]
    ticks = [word.text for word in drawn(picture, Word, "")]
    assert ticks[:2] == (["0 us", "50 us"] if size is WIDE else ["0 us", "200 us"])
    assert all(size.names <= float(rule.x1) <= size.width for rule in drawn(picture, Segment, "rule"))


def test_picture_of_many_operations_and_tracks_stays_small_and_says_what_is_left_out(tmp_path: Path) -> None:
    spans = [span("step 1", 0, 10_000, TrackKind.STEPS, step=1)]
    for lane in range(MOST_TRACKS + 3):
        for at in range(500):
            phase = ("forward", "backward")[at % 2]
            spans.append(span("mm", 20 * at, 5 + lane % 3, lane=lane, phase=phase, step=1))
    found = step_in(tmp_path, spans)
    assert found.left_out == "3 tracks with the least work are left out"
    picture, left_out = draw(found, WIDE)
    assert len(drawn(picture, Word, "work")) == MOST_TRACKS
    bars = len(drawn(picture, Area))
    assert bars <= MOST_BARS
    assert left_out == MOST_TRACKS * 500 - bars


def test_narrow_neighbours_of_one_colour_are_one_bar(tmp_path: Path) -> None:
    spans = [span("step 1", 0, 1_000_000, TrackKind.STEPS, step=1)]
    spans += [span("mm", 10 * at, 9, phase="forward", step=1) for at in range(100)]
    picture, _ = draw(step_in(tmp_path, spans), WIDE)
    assert [bar.tip for bar in drawn(picture, Area)] == ["100 operations"]


def test_trace_without_steps_is_drawn_whole_and_an_empty_one_not(tmp_path: Path) -> None:
    assert step_in(tmp_path, [span("a", 0, 10), span("b", 20, 10)]).number is None
    neutral.write(tmp_path / "empty.json.gz", Head("torch", 1, "cpu"), [])
    assert step_of(tmp_path / "empty.json.gz") is None
