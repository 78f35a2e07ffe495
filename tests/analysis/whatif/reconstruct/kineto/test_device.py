"""Kernels follow their calls, their streams, and the streams that theirs waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.whatif.reconstruct.pieces import Piece
from tests.analysis.whatif.reconstruct.kineto.events import (
    AUTOGRAD,
    NCCL,
    Event,
    accumulate,
    call,
    event,
    issued,
    kernel,
    operator,
    pieces_of,
    step,
    times,
)

MESSAGE = {
    "Collective name": "allreduce",
    "In msg nelems": 8,
    "Out msg nelems": 8,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}
TWO = {"distributedInfo": {"rank": 0, "world_size": 2}}


def lanes_of(tmp_path: Path, *events: Event) -> dict[str, list[Piece]]:
    trace = pieces_of(tmp_path, [step(900), *events], **TWO)
    return {lane: steps[0] for lane, steps in trace.lanes.items()}


def names(pieces: list[Piece]) -> list[str]:
    return [piece.name for piece in pieces]


def sum_of(ts: float, correlation: int, kernel_at: float, dur: float, thread: int = 1) -> list[Event]:
    """An all-reduce of NCCL: the operator, its waits between streams, and the kernel."""
    return [
        operator("c10d::allreduce_", ts, 20, tid=thread),
        call("cudaEventRecord", ts + 1, 1, correlation + 100, tid=thread),
        call("cudaStreamWaitEvent", ts + 3, 1, correlation + 101, tid=thread),
        call("cudaLaunchKernelExC", ts + 5, 2, correlation, tid=thread),
        kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", kernel_at, dur, correlation, tid=NCCL, **MESSAGE
        ),
    ]


def test_collective_of_nccl_waits_for_what_its_thread_has_issued_before(tmp_path: Path) -> None:
    work = [operator("aten::mm", 10, 30), *issued("sgemm", 3, (20, 25, 50))]
    lanes = lanes_of(tmp_path, *work, *sum_of(60, 5, 80, 40))
    (found,) = lanes["stream 40"]
    assert names(found.after) == ["c10d::allreduce_", "sgemm"]
    assert found.call is not None
    assert (*(found.call.operation, found.call.group, found.call.ranks, found.call.bytes, found.call.dtype),) == (
        "all_reduce",
        "0",
        (0, 1),
        32,
        "float32",
    )


def test_each_wait_of_a_stream_is_for_one_collective_in_their_order(tmp_path: Path) -> None:
    work = [
        *(*sum_of(60, 5, 80, 40), *sum_of(100, 6, 130, 40)),
        *(call("cudaStreamWaitEvent", 140, 1, 20), operator("aten::add", 150, 9), *issued("add", 7, (151, 160, 5))),
        *(call("cudaStreamWaitEvent", 170, 1, 21), operator("aten::mul", 180, 9), *issued("mul", 8, (181, 190, 5))),
    ]
    lanes = lanes_of(tmp_path, *work)
    first, second = lanes["stream 40"]
    assert [[first], [second]] == [[one for one in piece.after if one.call] for piece in lanes["stream 7"]]


def test_waits_that_cannot_be_assigned_are_for_all_collectives_and_are_reported(tmp_path: Path) -> None:
    work = [
        *(*sum_of(60, 5, 80, 40), *sum_of(100, 6, 130, 40)),
        *(call("cudaStreamWaitEvent", 140, 1, 20), operator("aten::add", 150, 9), *issued("add", 7, (151, 180, 5))),
    ]
    trace = pieces_of(tmp_path, [step(900), *work], **TWO)
    assert sum(one.call is not None for one in trace.lanes["stream 7"][0][0].after) == 2
    assert [one.partition(":")[2] for one in trace.caveats] == [
        " waits of streams and collectives differ in number in step 1: each wait is for all collectives that were"
        " started before it"
    ]


def sync(kind: str, ts: float, correlation: int, **args: Any) -> Event:
    return event(
        kind, ts, 1, "cuda_sync", **{"pid": 0, "tid": 20, "correlation": correlation, "cuda_sync_kind": kind} | args
    )


def test_stream_waits_for_the_work_of_another_one_up_to_the_record_of_an_event(tmp_path: Path) -> None:
    work = [
        *(operator("aten::mm", 10, 20), *issued("before", 3, (15, 20, 50))),
        *(call("cudaEventRecord", 32, 1, 50), operator("aten::mm", 34, 6), *issued("after", 4, (35, 70, 50))),
        call("cudaStreamWaitEvent", 42, 1, 51),
        sync("Stream Wait Event", 42, 51, wait_on_stream=7, wait_on_cuda_event_record_corr_id=50),
        *(operator("aten::add", 45, 9), *issued("waiting", 5, (46, 75, 5), tid=20)),
    ]
    (waiting,) = lanes_of(tmp_path, *work)["stream 20"]
    assert names(waiting.after) == ["aten::add", "before"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("cudaDeviceSynchronize", ["second", "first"]),
        ("cudaStreamSynchronize", ["second"]),
        ("cudaEventSynchronize", ["second", "first"]),
    ],
)
def test_thread_waits_for_its_streams_last_work(tmp_path: Path, name: str, found: list[str]) -> None:
    work = [
        *(operator("aten::mm", 10, 20), *issued("first", 3, (15, 20, 50))),
        *(operator("aten::mm", 32, 20), *issued("second", 4, (35, 40, 50), tid=20)),
        call(name, 60, 150, 9),
    ]
    lanes = lanes_of(tmp_path, *work)
    (wait,) = [piece for piece in lanes["host"] if piece.name == name]
    assert sorted(found) == sorted(names(wait.after))


def test_a_short_wait_for_an_unknown_event_waits_for_nothing(tmp_path: Path) -> None:
    work = [operator("aten::mm", 10, 20), *issued("first", 3, (15, 20, 50)), call("cudaEventSynchronize", 40, 3, 9)]
    lanes = lanes_of(tmp_path, *work)
    assert lanes["host"][-1].after == []


def test_kernel_belongs_to_the_step_and_the_operator_of_its_call(tmp_path: Path) -> None:
    events = [step(50), operator("aten::mm", 10, 20), *issued("sgemm", 3, (20, 70, 50)), step(50, 60, 2)]
    trace = pieces_of(tmp_path, [*events, operator("aten::add", 70, 5)])
    assert [names(pieces) for pieces in trace.lanes["stream 7"]] == [["sgemm"], []]


def test_kernels_that_overlap_on_a_stream_have_separate_lanes(tmp_path: Path) -> None:
    work = [operator("aten::mm", 10, 20), *issued("first", 3, (15, 20, 50)), *issued("second", 4, (18, 40, 50))]
    lanes = lanes_of(tmp_path, *work)
    assert [names(lanes[name]) for name in ("stream 7", "stream 7 (2)")] == [["first"], ["second"]]


def test_contents_of_ddps_buckets_follow_from_the_copies_out_of_them(tmp_path: Path) -> None:
    copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    at = {"tid": AUTOGRAD}

    def copied(ts: float, correlation: int, size: int) -> list[Event]:
        moved = kernel("Memcpy DtoD", ts + 20, 5, correlation, cat="gpu_memcpy", bytes=size)
        return [operator(copy, ts, 10, **at), call("cudaMemcpyAsync", ts + 2, 2, correlation, **at), moved]

    work = [
        operator("aten::mm", 1, 5),
        *(*accumulate(20, 9, [4], **at), *accumulate(30, 90, [4], **at)),
        *sum_of(40, 5, 80, 40, thread=AUTOGRAD),
        call("cudaStreamWaitEvent", 130, 1, 20, **at),
        *(*copied(140, 8, 12), *copied(160, 9, 20)),
    ]
    lanes = lanes_of(tmp_path, *work)
    (found,) = lanes["stream 40"]
    assert found.call is not None
    assert (found.call.tensors, found.call.tensor_layers) == ((12, 20), ("gradient 1", "gradient 2"))
    assert names(lanes["stream 7"]) == ["copy device to device"] * 2


def test_times_of_a_device_are_those_of_its_events(tmp_path: Path) -> None:
    lanes = lanes_of(tmp_path, operator("aten::mm", 10, 20), *issued("void sgemm<float, 4>(int)", 3, (15, 20, 50)))
    assert times(lanes["stream 7"]) == [("sgemm", 20, 70)]
