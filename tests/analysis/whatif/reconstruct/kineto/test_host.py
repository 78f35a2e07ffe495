"""The time of a thread becomes pieces of work, divided where something else begins or is waited for."""

from __future__ import annotations

from pathlib import Path

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import Piece
from tests.analysis.whatif.reconstruct.kineto.events import (
    AUTOGRAD,
    accumulate,
    backward,
    call,
    issued,
    kernel,
    operator,
    pieces_of,
    step,
    times,
)
from tests.records.traces.synthetic import event, mark


def test_operator_is_a_piece_and_nested_ones_are_part_of_it(tmp_path: Path) -> None:
    events = [step(90), operator("aten::linear", 10, 30), operator("aten::mm", 12, 20), operator("aten::relu", 50, 5)]
    found = pieces_of(tmp_path, events).lanes["host"][0]
    assert times(found) == [("aten::linear", 10, 40), ("aten::relu", 50, 55)]


def test_pieces_describe_the_products_in_them(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[2, 3], [3, 5]], "Input type": ["float", "float"]}
    events = [step(90), operator("aten::linear", 10, 30), operator("aten::mm", 12, 20, **shapes)]
    (piece,) = pieces_of(tmp_path, events).lanes["host"][0]
    assert (piece.flops, piece.bytes, piece.dtype, piece.shape) == (60.0, 84, "float32", (2, 3))


def test_python_within_a_layer_is_a_piece_and_elsewhere_a_gap(tmp_path: Path) -> None:
    events = [
        *(step(90), mark("layer:dense", 10, 30), operator("aten::mm", 20, 10)),
        *(mark("phase:backward", 50, 30), operator("aten::add", 60, 5)),
    ]
    found = pieces_of(tmp_path, events).lanes["host"][0]
    assert times(found) == [
        ("dense: between operators", 10, 20),
        ("aten::mm", 20, 30),
        ("dense: between operators", 30, 40),
        ("aten::add", 60, 65),
    ]
    assert [piece.kind for piece in found] == [NodeKind.HOST, NodeKind.COMPUTE, NodeKind.HOST, NodeKind.COMPUTE]


def test_ranges_that_users_name_after_a_phase_give_the_phase_but_no_work(tmp_path: Path) -> None:
    events = [step(90), event("## forward ##", 0, 80, "user_annotation"), operator("aten::mm", 20, 10)]
    (piece,) = pieces_of(tmp_path, events).lanes["host"][0]
    assert (piece.name, piece.phase) == ("aten::mm", "forward")


def test_work_outside_of_steps_is_left_out(tmp_path: Path) -> None:
    events = [operator("aten::mm", 1, 5), step(50, ts=10), operator("aten::add", 20, 5), operator("aten::sub", 70, 5)]
    assert [piece.name for piece in pieces_of(tmp_path, events).lanes["host"][0]] == ["aten::add"]


def gpu(tmp_path: Path, *events: dict[str, object]) -> dict[str, list[Piece]]:
    trace = pieces_of(tmp_path, [step(900), *events])
    return {lane: steps[0] for lane, steps in trace.lanes.items()}


def test_operator_is_divided_where_it_issues_a_kernel_which_follows(tmp_path: Path) -> None:
    lanes = gpu(tmp_path, operator("aten::mm", 10, 30), *issued("sgemm", 3, (20, 25, 50)))
    assert times(lanes["host"]) == [("aten::mm", 10, 20), ("aten::mm > cudaLaunchKernel", 20, 40)]
    (sgemm,) = lanes["stream 7"]
    assert [lanes["host"][0]] == sgemm.after
    assert [lanes["host"][0].kind, sgemm.kind] == [NodeKind.HOST, NodeKind.COMPUTE]


def test_call_that_synchronises_is_a_wait_without_time_for_the_last_kernel(tmp_path: Path) -> None:
    work = [operator("aten::mm", 10, 30), *issued("sgemm", 3, (20, 25, 50))]
    lanes = gpu(tmp_path, *work, call("cudaDeviceSynchronize", 50, 30, 4), operator("aten::add", 85, 5))
    waits = [piece for piece in lanes["host"] if piece.kind is NodeKind.WAIT]
    assert times(waits) == [("cudaDeviceSynchronize", 80, 80)]
    assert lanes["stream 7"] == waits[0].after


def test_copy_to_pageable_memory_is_waited_for_and_a_pinned_one_is_not(tmp_path: Path) -> None:
    copies = [
        kernel("Memcpy DtoH (Device -> Pageable)", 25, 40, 3, cat="gpu_memcpy", bytes=4),
        kernel("Memcpy DtoH (Device -> Pinned)", 120, 40, 4, cat="gpu_memcpy", bytes=4),
    ]
    calls = [call("cudaMemcpyAsync", 20, 50, 3), call("cudaMemcpyAsync", 100, 5, 4)]
    lanes = gpu(tmp_path, operator("aten::item", 10, 70), operator("aten::copy_", 95, 20), *calls, *copies)
    assert times([one for one in lanes["host"] if one.kind is NodeKind.WAIT]) == [("cudaMemcpyAsync", 70, 70)]


def test_kernel_without_its_call_follows_the_operator_with_its_external_id(tmp_path: Path) -> None:
    one = kernel("sgemm", 50, 20, 3, **{"External id": 5})
    lanes = gpu(tmp_path, operator("aten::mm", 10, 30, **{"External id": 5}), one)
    assert lanes["host"] == lanes["stream 7"][0].after


def test_gradient_is_complete_with_the_layer_of_the_operator_before(tmp_path: Path) -> None:
    sequence = {"Sequence number": 7}
    events = [
        *(step(200), mark("layer:dense", 10, 30), operator("aten::mm", 12, 20, **sequence)),
        *(backward("MmBackward0", 60, 20, **sequence), *accumulate(85, 5, [2, 3])),
    ]
    found = pieces_of(tmp_path, events).lanes["host"][0]
    assert [(piece.name, piece.gradient_of) for piece in found if piece.gradient_of] == [
        ("torch::autograd::AccumulateGrad", "dense")
    ]


def test_gradient_on_a_device_is_complete_with_the_last_kernel_of_its_addition(tmp_path: Path) -> None:
    events = [
        *(operator("aten::mm", 10, 10), *accumulate(30, 20, [4], tid=AUTOGRAD)),
        *issued("add", 3, (35, 40, 5), thread=AUTOGRAD),
        *issued("scale", 4, (45, 50, 5), thread=AUTOGRAD),
    ]
    lanes = gpu(tmp_path, *events)
    assert [piece.name for pieces in lanes.values() for piece in pieces if piece.gradient_of] == ["scale"]


def test_sleep_needs_no_core(tmp_path: Path) -> None:
    events = [step(90), operator("LayerSleep", 10, 30), backward("LayerSleepBackward", 50, 20)]
    assert [piece.cores for piece in pieces_of(tmp_path, events).lanes["host"][0]] == [0.0, 0.0]


def test_fetching_a_batch_is_input(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [step(90), event(loader, 0, 30, "user_annotation"), operator("aten::stack", 10, 5)]
    found = pieces_of(tmp_path, events).lanes["host"][0]
    assert [piece.kind for piece in found] == [NodeKind.INPUT] * 3
