"""Collectives of gloo: what starts them, what waits for them, and the gradients in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.reconstruct.kineto.device import cut_by_size, sort_of
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece, RankTrace
from tests.analysis.whatif.reconstruct.kineto.events import (
    Event,
    accumulate,
    backward,
    event,
    gloo,
    operator,
    pieces_of,
    repeated,
    step,
    times,
)

TWO = {"distributedInfo": {"rank": 0, "world_size": 2}}
COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@pytest.mark.parametrize(
    ("name", "sort"),
    [
        ("c10d::allreduce_", "allreduce"),
        ("gloo:all_reduce", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reducescatter"),
        ("c10d::_allgather_base_", "allgather"),
        ("_c10d_functional::all_gather_into_tensor", "allgather"),
        ("c10d::alltoall_base_", "alltoall"),
        ("gloo:all_to_all", "alltoall"),
        ("c10d::broadcast_", "broadcast"),
        ("c10d::recv_", "recv"),
        ("_c10d_functional::wait_tensor", None),
    ],
)
def test_names_of_all_libraries_mean_the_same_collectives(name: str, sort: str | None) -> None:
    assert sort == sort_of(name)


def shaped(shape: list[int]) -> dict[str, object]:
    return {"Input Dims": [shape], "Input type": ["float"]}


def only(trace: RankTrace, step_number: int = 0) -> Piece:
    (found,) = trace.lanes["gloo"][step_number]
    return found


def test_call_within_an_operator_that_returns_after_its_collective_is_a_wait_and_no_work(tmp_path: Path) -> None:
    events = [
        *(step(300), operator("Gather", 10, 200), operator("c10d::_allgather_base_", 20, 15)),
        *(gloo("all_gather", 30, 100, [4, 2]), operator("aten::cat", 140, 20)),
    ]
    trace = pieces_of(tmp_path, events, **TWO)
    host = trace.lanes["host"][0]
    assert times(host) == [("Gather", 10, 30), ("Gather > c10d::_allgather_base_", 130, 210)]
    assert ([host[0]], [only(trace)]) == (only(trace).after, host[1].after)


def test_bytes_are_those_of_the_complete_array(tmp_path: Path) -> None:
    events = [step(300), operator("c10d::_allgather_base_", 20, 15), gloo("all_gather", 30, 100, [4, 2])]
    found = only(pieces_of(tmp_path, events, **TWO))
    assert found.call is not None
    assert (found.call.operation, found.call.bytes, found.call.ranks) == ("all_gather", 2 * 4 * 2 * 4, (0, 1))


def test_collective_of_gloo_needs_no_core_and_runs_on_its_own_lane(tmp_path: Path) -> None:
    events = [step(300), operator("c10d::allreduce_", 20, 15), gloo("all_reduce", 30, 100, [4])]
    trace = pieces_of(tmp_path, events, **TWO)
    assert (only(trace).cores, trace.parallel) == (0.0, {"gloo": 2})


def ddp(late: float = 0.0) -> list[Event]:
    """Two layers, of which the second one's gradient closes a bucket; the third one's closes another."""
    return [
        *(operator("aten::mm", 10, 50), backward("MmBackward0", 100, 50), *accumulate(155, 5, [3])),
        *(backward("MmBackward0", 165, 50), *accumulate(220, 20, [5]), operator("c10d::allreduce_", 230, 5)),
        *(backward("MmBackward0", 245, 50), *accumulate(300, 20, [8]), operator("c10d::allreduce_", 310, 5)),
        *(gloo("all_reduce", 236, 200, [8]), gloo("all_reduce", 316, 300 + late, [8], tid=8)),
        *(operator(COPY, 440, 5, **shaped([3])), operator(COPY, 446, 5, **shaped([5]))),
        operator(COPY, 620, 5, **shaped([8])),
    ]


def test_ddp_waits_for_a_bucket_before_it_copies_its_sums(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(700), *ddp()], **TWO)
    first, second = trace.lanes["gloo"][0]
    waiting = {piece.start_ns // 1000: piece.after for piece in trace.lanes["host"][0] if piece.after}
    assert {440: [first], 620: [second]} == waiting


def test_views_of_a_buckets_sums_are_taken_after_the_wait(tmp_path: Path) -> None:
    view = operator("aten::as_strided", 610, 5)
    trace = pieces_of(tmp_path, [step(700), *ddp(), view], **TWO)
    waiting = [piece.name for piece in trace.lanes["host"][0] if piece.after]
    assert waiting == [COPY, "aten::as_strided"]


def test_bucket_is_started_by_the_gradient_that_closes_it(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(700), *ddp()], **TWO)
    starts = [piece.after for piece in trace.lanes["gloo"][0]]
    assert [[piece.name for piece in after] for after in starts] == [["torch::autograd::AccumulateGrad"]] * 2
    assert [after[0].end_ns // 1000 for after in starts] == [235, 315]


def test_buckets_have_the_gradients_of_their_bytes(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(700), *ddp()], **TWO)
    calls = [piece.call for piece in trace.lanes["gloo"][0]]
    assert [call.tensors for call in calls if call] == [(12, 20), (32,)]
    assert [call.tensor_layers for call in calls if call] == [("gradient 1", "gradient 2"), ("gradient 3",)]
    assert [(call.group, call.ordinal) for call in calls if call] == [("0", 0), ("0", 1)]


def test_gradients_are_complete_before_their_bucket_is_started(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(700), *ddp()], **TWO)
    done = [piece for piece in trace.lanes["host"][0] if piece.gradient_of]
    assert [(piece.gradient_of, piece.end_ns // 1000) for piece in done] == [
        ("gradient 1", 160),
        ("gradient 2", 235),
        ("gradient 3", 315),
    ]


def test_event_that_ends_after_its_sums_are_used_is_cut_there(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(900), *ddp(late=100)], **TWO)
    assert trace.lanes["gloo"][0][1].end_ns // 1000 == 620


def test_without_copies_all_buckets_are_waited_for_after_the_last_gradient(tmp_path: Path) -> None:
    events = [one for one in ddp() if one["name"] != COPY]
    trace = pieces_of(tmp_path, [step(900), *events, operator("aten::sub_", 630, 5)], **TWO)
    after = trace.lanes["host"][0][-1].after
    assert [piece.name for piece in after] == ["gloo:all_reduce"] * 2
    assert [piece.call.tensors for piece in after if piece.call and len(piece.call.tensors) == 1] == [(32,)]


def hooked(dur: float) -> list[Event]:
    """A hook of DDP that returns when the sums of its bucket are there, while another gradient is left."""
    return [
        *(backward("MmBackward0", 10, 50), *accumulate(70, dur, [8]), operator("c10d::allreduce_", 80, 5)),
        *(gloo("all_reduce", 86, dur - 20, [8]), backward("MmBackward0", 75 + dur, 50)),
        *accumulate(130 + dur, 5, [8]),
    ]


def test_hook_that_waits_in_the_backward_pass_is_no_work(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(9000), *hooked(5000)], **TWO)
    waiting = [(piece.start_ns // 1000, piece.duration_ns // 1000) for piece in trace.lanes["host"][0] if piece.after]
    assert waiting == [(5066, 4)]


def test_hook_that_returns_at_once_proves_no_wait_by_a_collective_that_is_as_short(tmp_path: Path) -> None:
    trace = pieces_of(tmp_path, [step(9000), *hooked(500)], **TWO)
    assert [piece for piece in trace.lanes["host"][0] if piece.after] == []


def test_asynchronous_collective_is_waited_for_where_its_thread_is_idle(tmp_path: Path) -> None:
    events = [
        *(operator("c10d::allreduce_", 20, 10), gloo("all_reduce", 32, 400, [4]), operator("aten::mm", 31, 200)),
        operator("aten::add", 440, 5),
    ]
    trace = pieces_of(tmp_path, repeated(events, [0, 1000, 2000], 900), **TWO)
    assert [[piece.name for piece in host if piece.after] for host in trace.lanes["host"]] == [["aten::add"]] * 3


def test_collective_that_nothing_waits_for_is_reported(tmp_path: Path) -> None:
    events = [
        *(operator("c10d::allreduce_", 20, 10), gloo("all_reduce", 32, 400, [4]), operator("aten::mm", 31, 600)),
        operator("aten::add", 640, 5),
    ]
    trace = pieces_of(tmp_path, repeated(events, [0, 1000], 900), **TWO)
    assert trace.caveats == ["rank 0: no operation is known to wait for collective 0, gloo:all_reduce"]


def test_collective_without_its_call_begins_at_the_same_time_of_each_step(tmp_path: Path) -> None:
    events = [operator("aten::mm", 10, 500), gloo("all_reduce", 32, 100, [4])]
    trace = pieces_of(tmp_path, repeated(events, [0, 1000], 900), **TWO)
    assert [[one.name for one in only(trace, number).after] for number in (0, 1)] == [["step"]] * 2
    assert "rank 0: 2 collectives were started by no operator of the trace" in trace.caveats


def test_transfer_is_a_collective_of_two_ranks_and_only_its_receiver_waits(tmp_path: Path) -> None:
    peer = {"Concrete Inputs": ["", "", "1", "0"]}
    events = [
        *(
            step(900),
            operator("c10d::send", 20, 10, **peer),
            event("gloo:send", 25, 500, "user_annotation", **shaped([4])),
        ),
        *(operator("aten::mm", 35, 100), operator("c10d::recv_", 140, 10, **peer)),
        *(event("gloo:recv", 145, 200, "user_annotation", **shaped([4])), operator("aten::add", 350, 10)),
    ]
    trace = pieces_of(tmp_path, events, **TWO)
    sent, received = trace.lanes["gloo transfers"][0]
    assert sent.call is not None
    assert received.call is not None
    assert [(call.group, call.ranks, call.bytes) for call in (sent.call, received.call)] == [
        ("0 to 1", (0, 1), 16),
        ("1 to 0", (1, 0), 16),
    ]
    assert [[received]] == [piece.after for piece in trace.lanes["host"][0] if piece.after]


@pytest.mark.parametrize(
    ("known", "sizes", "found"),
    [
        ([1, 2, 3], [3, 3], [range(2), range(2, 3)]),
        ([1, 2, 3], [2, 4], None),
        ([1, 2, 3], [3], None),
        ([], [3], None),
    ],
)
def test_successive_sizes_are_cut_where_their_sums_are_those_wanted(
    known: list[int], sizes: list[int], found: list[range] | None
) -> None:
    assert found == cut_by_size(known, sizes)
