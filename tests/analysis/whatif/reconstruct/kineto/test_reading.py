"""A file is read into events by thread; an error names the file and the event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_matrix.analysis.whatif.reconstruct.kineto.reading import read
from tests.analysis.whatif.reconstruct.kineto.events import call, gloo, kernel, operator, pieces_of, step
from tests.records.traces.synthetic import chrome, event


def test_events_are_separate_by_thread_stream_collective_and_step(tmp_path: Path) -> None:
    events = [step(90), operator("aten::mm", 1, 5), call("cudaLaunchKernel", 2, 1, 3), kernel("sgemm", 4, 5, 3)]
    found = read(chrome(tmp_path / "t.json", [*events, gloo("all_reduce", 10, 5, [4])]))
    assert [
        [one.name for events in places.values() for one in events]
        for places in (found.threads, found.streams, found.gloo, found.steps)
    ] == [["aten::mm", "cudaLaunchKernel"], ["sgemm"], ["gloo:all_reduce"], ["kbm:step:1"]]


def test_a_file_says_its_rank_its_groups_its_machine_and_its_devices(tmp_path: Path) -> None:
    info = {"backend": "nccl", "rank": 3, "world_size": 4, "pg_config": [{"pg_name": "1", "ranks": [1, 3]}]}
    members: dict[str, Any] = {"distributedInfo": info, "host_name": "a", "deviceProperties": [{"name": "A100"}]}
    found = read(chrome(tmp_path / "t.json", [operator("aten::mm", 1, 5)], **members))
    assert (*(found.rank, found.world_size, found.library, found.groups, found.host, found.devices),) == (
        3,
        4,
        "nccl",
        {"1": (1, 3)},
        "a",
        ["A100"],
    )


def test_categories_of_older_files_are_those_of_today(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#1", 0, 100, "Operator"),
        event("aten::mm", 1, 50, "Operator"),
        event("cudaLaunchKernel", 2, 5, "Runtime", correlation=1),
        event("gemm", 10, 20, "Kernel", pid=0, tid=7, correlation=1),
        event("Memcpy HtoD (Pinned -> Device)", 40, 5, "Memcpy", pid=0, tid=7, correlation=2),
    ]
    found = read(chrome(tmp_path / "trace.json", events))
    assert [one.name for steps in found.steps.values() for one in steps] == ["ProfilerStep#1"]
    assert [one.category for one in found.threads[1, 1]] == ["cpu_op", "cuda_runtime"]
    assert [one.category for one in found.streams[0, 7]] == ["kernel", "gpu_memcpy"]


def test_work_of_an_accelerator_that_is_not_read_is_counted_and_named(tmp_path: Path) -> None:
    work = event("dma_request", 20, 5, "mtia_ccp_events", pid=9)
    found = pieces_of(
        tmp_path, [event("ProfilerStep#1", 0, 100, "user_annotation"), event("aten::mm", 1, 50), work, work]
    )
    assert found.caveats == [
        "rank 0: 2 events of an accelerator (mtia_ccp_events) are left out, because this program does not know what"
        " they mean: the times are those of its host"
    ]


def test_equal_shapes_are_one_object(tmp_path: Path) -> None:
    args = {"Input Dims": [[2, 3]], "Input type": ["float"]}
    found = read(chrome(tmp_path / "t.json", [operator("aten::relu", at, 1, **args) for at in (1, 3)]))
    first, second = next(iter(found.threads.values()))
    assert first.operands is second.operands
