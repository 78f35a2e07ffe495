"""The summary of a trace."""

from __future__ import annotations

import pytest

from keras_matrix.analysis.traces import table
from keras_matrix.records.traces.neutral import Head, TrackKind
from keras_matrix.records.traces.table import IdleGap, TimeShare
from tests.records.traces.synthetic import span

HEAD = Head("torch", 1, "cpu", 1)
STEP = span("step 1", 0, 100, TrackKind.STEPS, step=1)


def test_time_of_an_operation_excludes_nested_ones() -> None:
    found = table(
        HEAD,
        [
            STEP,
            span("linear", 10, 40, layer="dense", phase="forward"),
            span("mm", 15, 20, layer="dense", phase="forward"),
            span("add", 36, 10, layer="dense", phase="forward"),
            span("mm", 60, 30, layer="dense", phase="backward"),
        ],
    )
    assert found.by_operation == [
        TimeShare("mm", 2, pytest.approx(50e-6), pytest.approx(5 / 7)),
        TimeShare("add", 1, pytest.approx(10e-6), pytest.approx(1 / 7)),
        TimeShare("linear", 1, pytest.approx(10e-6), pytest.approx(1 / 7)),
    ]
    assert [(part.name, part.count) for part in found.by_phase] == [("forward", 3), ("backward", 1)]
    assert [(part.name, part.share) for part in found.by_layer] == [("dense", pytest.approx(1))]
    assert (found.window_s, found.busy_share, found.computed_s) == (
        pytest.approx(100e-6),
        pytest.approx(0.7),
        pytest.approx(70e-6),
    )


def test_missing_layer_and_phase_have_no_name() -> None:
    found = table(HEAD, [STEP, span("mm", 0, 10)])
    assert [part.name for part in (*found.by_layer, *found.by_phase)] == [None, None]


def test_gaps_have_their_neighbours_and_the_programs_activity() -> None:
    found = table(
        HEAD,
        [
            STEP,
            span("forward", 0, 90, TrackKind.LAYERS),
            span("input", 12, 25, TrackKind.INPUT),
            span("a", 5, 5),
            span("b", 40, 10),
            span("c", 45, 5),
        ],
    )
    assert [(gap.before, gap.after, gap.meanwhile, round(gap.duration_s * 1e6)) for gap in found.gaps] == [
        ("b", None, "forward", 50),
        ("a", "b", "input", 30),
        (None, "a", "forward", 5),
    ]
    assert (found.gap_count, found.gap_time_s) == (3, pytest.approx(85e-6))


def test_work_at_the_same_time_on_several_tracks_is_busy_once_and_computed_twice() -> None:
    found = table(HEAD, [STEP, span("a", 0, 50), span("b", 25, 50, lane=1)])
    assert (found.busy_share, found.computed_s) == (pytest.approx(0.75), pytest.approx(100e-6))


def test_only_spans_that_begin_within_the_steps_count() -> None:
    found = table(HEAD, [span("start", -50, 20), STEP, span("a", 0, 10, step=1), span("end", 200, 5)])
    assert [part.name for part in found.by_operation] == ["a"]


def test_step_lasts_until_its_device_work_ends() -> None:
    found = table(HEAD, [STEP, span("late", 120, 30, step=1)])
    assert (found.window_s, [part.name for part in found.by_operation]) == (pytest.approx(150e-6), ["late"])


def test_between_traced_epochs_there_is_no_gap() -> None:
    spans = [
        span("step 1", 0, 10, TrackKind.STEPS, step=1),
        span("a", 0, 10),
        span("step 2", 1000, 10, TrackKind.STEPS, step=2),
        span("a", 1000, 10),
    ]
    found = table(Head("torch", 1, "cpu", 2, 2), spans)
    assert (found.gap_count, found.window_s, found.step_time_s) == (0, pytest.approx(20e-6), pytest.approx(10e-6))


def test_window_is_the_mean_over_workers_and_time_the_sum() -> None:
    spans = [
        STEP,
        span("a", 0, 100),
        span("step 1", 0, 50, TrackKind.STEPS, worker=1, step=1),
        span("a", 0, 25, worker=1),
    ]
    found = table(Head("torch", 2, "cpu", 1), spans)
    assert (found.window_s, found.busy_share, found.computed_s) == (
        pytest.approx(75e-6),
        pytest.approx(0.75),
        pytest.approx(125e-6),
    )
    assert found.gaps == [IdleGap(1, pytest.approx(25e-6), pytest.approx(25e-6), "a", None)]


def test_steps_of_a_process_that_drives_all_devices_apply_to_all() -> None:
    both = [span("a", 0, 100, step=1), span("a", 10, 50, worker=1, step=1)]
    found = table(Head("jax", 2, "gpu", 1), [STEP, *both, span("late", 300, 50, worker=1)])
    assert (found.window_s, found.busy_share) == (pytest.approx(100e-6), pytest.approx(0.75))
    assert [(part.name, part.count) for part in found.by_operation] == [("a", 2)]


def test_window_of_a_device_whose_work_has_no_step_ends_with_its_last_work_of_the_epoch() -> None:
    steps = [span(f"step {n}", begin, 100, TrackKind.STEPS, step=n) for n, begin in ((1, 0), (2, 1000))]
    work = [span("a", begin, 500) for begin in (50, 1050)]
    found = table(Head("jax", 1, "gpu", 2, epochs=2), [*steps, *work])
    assert (found.window_s, found.busy_share) == (pytest.approx(1100e-6), pytest.approx(1000 / 1100))
    assert table(Head("jax", 1, "cpu", 2, epochs=2), [*steps, *work]).window_s == pytest.approx(200e-6)


def test_work_is_divided_into_kinds_and_communication_that_compute_overlaps() -> None:
    spans = [
        STEP,
        span("a", 0, 40),
        span("nccl", 20, 40, TrackKind.COMMUNICATION),
        span("MemcpyH2D", 0, 10, TrackKind.COPY),
    ]
    found = table(HEAD, spans)
    assert [(part.name, part.count) for part in found.by_kind] == [("communication", 1), ("compute", 1), ("copy", 1)]
    assert (found.overlap_share, found.busy_share) == (pytest.approx(0.5), pytest.approx(0.6))
    assert table(HEAD, [STEP, span("a", 0, 40)]).overlap_share is None


def test_mark_over_less_than_half_of_a_gap_is_ignored() -> None:
    found = table(HEAD, [STEP, span("a", 0, 20), span("input", 20, 35, TrackKind.INPUT), span("b", 95, 5)])
    assert [(gap.after, gap.meanwhile) for gap in found.gaps] == [("b", None)]


def test_work_between_traced_epochs_does_not_count() -> None:
    spans = []
    for number in range(1, 101):
        begin = 1000 * number
        spans.append(span(f"step {number}", begin, 10, TrackKind.STEPS, step=number))
        spans += [span("a", begin, 5), span("between", begin + 500, 5), span("b", begin, 10, lane=1)]
    found = table(Head("torch", 1, "cpu", 100, 100), spans)
    assert [(part.name, part.count, part.time_s) for part in found.by_operation] == [
        ("b", 100, pytest.approx(1000e-6)),
        ("a", 100, pytest.approx(500e-6)),
    ]
    assert (found.window_s, found.busy_share, found.gap_count) == (pytest.approx(1000e-6), pytest.approx(1), 0)


def test_idle_device_is_excluded_from_the_mean() -> None:
    found = table(Head("xla", 2, "gpu"), [span("a", 10, 10, worker=1), span("b", 40, 10, worker=1)])
    assert (found.window_s, found.busy_share, found.gap_count) == (pytest.approx(40e-6), pytest.approx(0.5), 1)


def test_window_without_steps_covers_all_work() -> None:
    found = table(Head("torch", 1, "gpu"), [span("a", 10, 10), span("b", 40, 10)])
    assert (found.steps, found.window_s, found.busy_share) == (None, pytest.approx(40e-6), pytest.approx(0.5))


def test_empty_trace_has_an_empty_table() -> None:
    found = table(Head("jax", 1, "cpu"), [])
    assert (found.window_s, found.busy_share, found.by_operation, found.gaps) == (0, None, [], [])
