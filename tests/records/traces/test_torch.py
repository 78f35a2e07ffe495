"""PyTorch's events as the neutral trace has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from records.traces import torch
from records.traces.asked import TraceError
from records.traces.neutral import Kind, Phase, Span, covered
from tests.records.traces.made_up import chrome, event, flow, mark, step_of_torch

PUBLIC = Path(__file__).parents[4] / "shared" / "traces"


def spans(tmp_path: Path, events: list[dict[str, Any]]) -> list[Span]:
    return torch.spans(torch.read(chrome(tmp_path / "trace.json", events)), 0)[0]


def told(found: list[Span], name: str) -> list[tuple[Phase | None, str | None, int | None]]:
    return [(one.phase, one.layer, one.step) for one in found if one.name == name]


def test_operators_get_phase_layer_and_step_from_the_marks_round_them(tmp_path: Path) -> None:
    found = spans(tmp_path, step_of_torch())
    assert told(found, "aten::linear") == [(Phase.FORWARD, "block/dense", 1)]
    assert told(found, "aten::add_") == [(Phase.UPDATE, None, 1)]
    assert {one.track.name for one in found} == {"steps", "layers", "input", "compute"}


def test_what_goes_back_belongs_to_the_layer_of_the_operator_with_its_number(tmp_path: Path) -> None:
    found = spans(tmp_path, step_of_torch())
    assert told(found, "MmBackward0") == [(Phase.BACKWARD, "block/dense", 1)]
    assert told(found, "aten::mm") == [(Phase.FORWARD, "block/dense", 1), (Phase.BACKWARD, "block/dense", 1)]


def test_without_marks_what_autograd_goes_back_over_is_forward_and_the_rest_is_not_told(tmp_path: Path) -> None:
    events = [one for one in step_of_torch() if not one["name"].startswith("kbm:")]
    events.append(event("aten::eq", 96, 1, **{"Sequence number": 99}))
    found = spans(tmp_path, events)
    assert told(found, "aten::linear") == [(Phase.FORWARD, None, None)]
    assert told(found, "MmBackward0") == [(Phase.BACKWARD, None, None)]
    assert told(found, "aten::eq") == [(None, None, None)]


def test_torchs_own_annotations_tell_steps_and_updates(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 50, "user_annotation"),
        event("Optimizer.step#SGD.step", 10, 10, "user_annotation"),
        event("aten::add_", 12, 5),
    ]
    assert told(spans(tmp_path, events), "aten::add_") == [(Phase.UPDATE, None, 4)]


def test_collectives_lie_on_a_track_of_their_own(tmp_path: Path) -> None:
    events = [
        event("c10d::allreduce_", 0, 5),
        event("gloo:all_reduce", 2, 30, "user_annotation", tid=9),
        event("aten::mm", 40, 5),
    ]
    found = spans(tmp_path, events)
    assert [(one.name, one.track.kind, one.phase) for one in found] == [
        ("c10d::allreduce_", Kind.COMPUTE, Phase.COMMUNICATION),
        ("aten::mm", Kind.COMPUTE, None),
        ("gloo:all_reduce", Kind.COMMUNICATION, Phase.COMMUNICATION),
    ]


def test_on_a_device_its_kernels_compute_and_are_told_by_what_launched_them(tmp_path: Path) -> None:
    events = [
        mark("phase:forward", 0, 50),
        mark("layer:dense", 0, 50),
        event("aten::mm", 5, 10),
        event("cudaLaunchKernel", 8, 2, "cuda_runtime", correlation=3),
        event("sgemm", 20, 30, "kernel", pid=0, tid=7, correlation=3),
        event("ncclDevKernel_AllReduce", 60, 5, "kernel", pid=0, tid=8, correlation=4),
    ]
    found = spans(tmp_path, events)
    kernel = next(one for one in found if one.name == "sgemm")
    assert (kernel.track.name, kernel.op, kernel.phase, kernel.layer) == (
        "compute",
        "aten::mm",
        Phase.FORWARD,
        "dense",
    )
    assert [one.track.name for one in found if one.name == "aten::mm"] == ["host"]
    assert [one.track.name for one in found if one.name.startswith("nccl")] == ["communication"]


def test_flows_lead_from_forward_to_backward_operators(tmp_path: Path) -> None:
    events = [*step_of_torch(), flow("s", 1, 15), flow("f", 1, 42, bp="e"), flow("s", 2, 15)]
    recording = torch.read(chrome(tmp_path / "trace.json", events))
    (found,) = torch.spans(recording, 0)[1]
    assert (found.name, found.source.at_ns, found.target.at_ns) == ("forward_backward", 15_000, 42_000)


def test_flows_lead_from_a_launch_to_its_kernel(tmp_path: Path) -> None:
    launch = {"cat": "ac2g", "name": "ac2g"}
    events = [
        event("aten::mm", 5, 10),
        event("cudaLaunchKernel", 8, 2, "cuda_runtime", correlation=3),
        event("sgemm", 20, 30, "kernel", pid=0, tid=7, correlation=3),
        flow("s", 3, 8, **launch),
        flow("f", 3, 20, pid=0, tid=7, **launch),
    ]
    (found,) = torch.spans(torch.read(chrome(tmp_path / "trace.json", events)), 0)[1]
    assert (found.name, found.source.track.kind, found.target.track.kind) == ("launch", Kind.HOST, Kind.COMPUTE)


def test_what_drives_a_device_lies_on_the_hosts_tracks_and_copies_compute(tmp_path: Path) -> None:
    events = [
        event("aten::copy_", 0, 50),
        event("train.py(7): step", 1, 40, "python_function"),
        event("cudaMemcpyAsync", 5, 10, "cuda_runtime", correlation=3),
        event("cuLaunchKernel", 20, 2, "cuda_driver", correlation=4),
        event("Memcpy HtoD", 30, 5, "gpu_memcpy", pid=0, tid=7, correlation=3),
        event("Memset", 36, 1, "gpu_memset", pid=0, tid=7, correlation=4),
        event("cudaDeviceSynchronize", 60, 2, "overhead"),
        event("some other category", 70, 2, "ac2g"),
    ]
    found = spans(tmp_path, events)
    assert [(one.name, str(one.track.kind)) for one in found] == [
        ("aten::copy_", "host"),
        ("train.py(7): step", "host"),
        ("cudaMemcpyAsync", "host"),
        ("cuLaunchKernel", "host"),
        ("cudaDeviceSynchronize", "host"),
        ("Memcpy HtoD", "compute"),
        ("Memset", "compute"),
    ]


def test_spans_of_a_track_never_cross(tmp_path: Path) -> None:
    events = [event("outer", 0, 10.0004), event("inner", 4, 6.0009), event("next", 10.0004, 1)]
    outer, inner, following = spans(tmp_path, events)
    assert inner.end_ns <= outer.end_ns <= following.start_ns


@pytest.mark.parametrize(
    "one",
    [
        17,
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1},
        event("aten::mm", 1, 2) | {"ts": "soon"},
        event("kbm:clock:late", 1, 2, "user_annotation"),
        event("aten::mm", 1e300, 1e308) | {"ts": float("inf")},
        {"ph": "s", "cat": "fwdbwd"},
    ],
)
def test_an_event_that_is_none_of_pytorchs_is_refused_by_its_files_name(tmp_path: Path, one: Any) -> None:
    with pytest.raises(TraceError, match=r"trace\.json: traceEvents holds what PyTorch's profiler does not write: "):
        torch.read(chrome(tmp_path / "trace.json", [one]))


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not beside this checkout")
@pytest.mark.parametrize("name", ["gloo_cpu_rank34", "simple_add", "ddp_nccl_2gpu_rank0"])
def test_of_a_public_trace_all_time_of_operators_and_kernels_is_kept(name: str) -> None:
    import gzip
    import json

    path = PUBLIC / f"{name}.json.gz"
    wanted: dict[Any, list[tuple[float, float]]] = {}
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    cats = ("kernel", "gpu_memcpy", "gpu_memset")
    if not any(one.get("cat") in cats for one in events):
        cats = ("cpu_op",)
    for one in events:
        if one.get("cat") in cats:
            wanted.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    kept: dict[Any, list[tuple[float, float]]] = {}
    for span in torch.spans(torch.read(path), 0)[0]:
        if span.track.kind in (Kind.COMPUTE, Kind.COMMUNICATION) and not span.name.startswith("gloo:"):
            kept.setdefault(span.track, []).append((span.start_ns / 1000, span.end_ns / 1000))
    expected, actual = (sum(map(covered, one.values())) for one in (wanted, kept))
    assert actual == pytest.approx(expected, rel=1e-3)
