"""One file as the pieces of a rank: its steps, its threads and how they hand work over."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.whatif.reconstruct.kineto.events import (
    AUTOGRAD,
    backward,
    call,
    event,
    kernel,
    operator,
    pieces_of,
    step,
    times,
)


def test_backward_pass_of_another_thread_starts_after_the_main_one_which_waits_for_it(tmp_path: Path) -> None:
    events = [
        *(step(900), operator("aten::mm", 10, 30), operator("aten::ones_like", 50, 10)),
        *(backward("MmBackward0", 80, 100, tid=AUTOGRAD), backward("AddBackward0", 190, 100, tid=AUTOGRAD)),
        *(operator("aten::add_", 300, 10), kernel("sgemm", 30, 10, 3), call("cudaLaunchKernel", 20, 2, 3)),
    ]
    trace = pieces_of(tmp_path, events)
    host, autograd = trace.lanes["host"][0], trace.lanes["autograd"][0]
    assert [[one.name for one in piece.after] for piece in autograd] == [["aten::ones_like"], []]
    assert [autograd[1]] == host[-1].after
    assert [piece.phase for piece in autograd] == ["backward"] * 2


def test_threads_that_only_ask_for_a_devices_state_are_left_out(tmp_path: Path) -> None:
    events = [step(90), operator("aten::mm", 10, 30), call("cudaEventQuery", 20, 3, 4, tid=9)]
    assert list(pieces_of(tmp_path, events).lanes) == ["host"]


def test_this_projects_own_steps_are_preferred_to_the_profilers(tmp_path: Path) -> None:
    events = [event("ProfilerStep#1", 0, 90, "user_annotation"), step(40), step(40, 45, 2), operator("aten::mm", 1, 5)]
    assert [(window.begin_ns, window.end_ns) for window in pieces_of(tmp_path, events).windows] == [
        (0, 40_000),
        (45_000, 85_000),
    ]


def test_file_without_marked_steps_is_one_step_and_says_so(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [operator("aten::mm", 10, 30), operator("aten::add", 50, 5)])
    assert times(trace.lanes["host"][0]) == [("aten::mm", 10, 40), ("aten::add", 50, 55)]
    assert trace.caveats == ["rank 0: no step is marked, so that the whole file counts as one step"]
