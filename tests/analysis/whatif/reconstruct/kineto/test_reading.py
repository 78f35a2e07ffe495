"""A file is read into events by thread; an error names the file and the event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.whatif.reconstruct.kineto.reading import read
from keras_matrix.records.traces.request import TraceError
from tests.analysis.whatif.reconstruct.kineto.events import Event, call, gloo, kernel, operator, pieces_of, step
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
    with pytest.raises(TraceError, match=r"among its 1 events \(of the categories mtia_ccp_events\); name a file"):
        read(chrome(tmp_path / "trace.json", [work]))


def test_equal_shapes_are_one_object(tmp_path: Path) -> None:
    args = {"Input Dims": [[2, 3]], "Input type": ["float"]}
    found = read(chrome(tmp_path / "t.json", [operator("aten::relu", at, 1, **args) for at in (1, 3)]))
    first, second = next(iter(found.threads.values()))
    assert first.operands is second.operands


def without(one: Event, key: str) -> Event:
    return {name: value for name, value in one.items() if name != key}


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (without(operator("aten::mm", 1, 5), "dur"), r"event 2 \('aten::mm'\): has no 'dur'"),
        (without(operator("aten::mm", 1, 5), "ts"), r"event 2 \('aten::mm'\): has no 'ts'"),
        (operator("aten::mm", 9, -5), r"event 2 \('aten::mm'\): lasts -5 us: the clock ran backwards"),
        (operator("aten::mm", float("nan"), 5), r"event 2 \('aten::mm'\): cannot convert float NaN"),
        (operator("aten::mm", 1, 5) | {"ts": "soon"}, r"event 2 \('aten::mm'\): "),
        (event("aten::mm", 1, 5) | {"args": [1]}, r"event 2 \('aten::mm'\): "),
        (operator("aten::mm", 1, 5, **{"Sequence number": "7"}), r"event 2 \('aten::mm'\): its sequence number, "),
        (operator("aten::mm", 1, 5, **{"External id": 1.5}), r"event 2 \('aten::mm'\): its sequence number, "),
    ],
)
def test_damaged_event_is_rejected_with_its_file_its_number_and_its_name(
    tmp_path: Path, one: Event, problem: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"traceEvents": [operator("aten::add", 0, 1), one]}))
    with pytest.raises(TraceError, match=rf"mine\.json: {problem}.*; record it again"):
        read(path)


def test_truncated_file_is_rejected_with_the_last_event_before_its_end(tmp_path: Path) -> None:
    path = chrome(tmp_path / "mine.json", [operator("aten::mm", 1, 5), operator("aten::add", 7, 5)])
    path.write_text(path.read_text()[: path.read_text().index("aten::add")])
    with pytest.raises(TraceError, match=r"mine\.json: is not a complete Chrome trace.*after event 1, 'aten::mm'"):
        read(path)


@pytest.mark.parametrize("text", ['{"a": 1}', '{"traceEvents": []}', '[{"ph": "X", "cat": "browser", "name": "x"}]'])
def test_json_of_another_program_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"mine\.json: contains no operation of a profiler"):
        read(path)


@pytest.mark.parametrize("info", [{"rank": 0, "world_size": "2"}, {"rank": 0.5, "world_size": 2}, {"rank": True}])
def test_a_rank_or_number_of_ranks_that_is_no_integer_is_rejected(tmp_path: Path, info: dict[str, Any]) -> None:
    path = chrome(tmp_path / "mine.json", [operator("aten::mm", 1, 5)], distributedInfo=info)
    with pytest.raises(TraceError, match=r"mine\.json: distributedInfo\.(rank|world_size): must be an integer"):
        read(path)
