"""PyTorch's events in the neutral trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.traces import conversion, torch
from keras_matrix.records.traces.neutral import WORKING, Phase, Span, TrackKind, covered
from tests.records.traces.synthetic import chrome, event, flow, mark, step_of_torch

PUBLIC = Path(__file__).parents[4] / "shared" / "traces"


def spans(tmp_path: Path, events: list[dict[str, Any]]) -> list[Span]:
    return torch.spans(torch.read(chrome(tmp_path / "trace.json", events)), 0)[0]


def phases_and_layers(found: list[Span], name: str) -> list[tuple[Phase | None, str | None, int | None]]:
    return [(one.phase, one.layer, one.step) for one in found if one.name == name]


def test_operators_get_phase_layer_and_step_from_the_marks_round_them(tmp_path: Path) -> None:
    found = spans(tmp_path, step_of_torch())
    assert phases_and_layers(found, "aten::linear") == [(Phase.FORWARD, "block/dense", 1)]
    assert phases_and_layers(found, "aten::add_") == [(Phase.UPDATE, None, 1)]
    assert {one.track.name for one in found} == {"steps", "layers", "input", "compute"}


def test_backward_operator_belongs_to_the_layer_with_its_sequence_number(tmp_path: Path) -> None:
    found = spans(tmp_path, step_of_torch())
    assert phases_and_layers(found, "MmBackward0") == [(Phase.BACKWARD, "block/dense", 1)]
    assert phases_and_layers(found, "aten::mm") == [
        (Phase.FORWARD, "block/dense", 1),
        (Phase.BACKWARD, "block/dense", 1),
    ]


def test_unmarked_operators_with_a_backward_pass_are_forward_and_others_unknown(tmp_path: Path) -> None:
    events = [one for one in step_of_torch() if not one["name"].startswith("kbm:")]
    events.append(event("aten::eq", 96, 1, **{"Sequence number": 99}))
    found = spans(tmp_path, events)
    assert phases_and_layers(found, "aten::linear") == [(Phase.FORWARD, None, None)]
    assert phases_and_layers(found, "MmBackward0") == [(Phase.BACKWARD, None, None)]
    assert phases_and_layers(found, "aten::eq") == [(None, None, None)]


def test_torchs_own_annotations_tell_steps_and_updates(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 50, "user_annotation"),
        event("Optimizer.step#SGD.step", 10, 10, "user_annotation"),
        event("aten::add_", 12, 5),
    ]
    assert phases_and_layers(spans(tmp_path, events), "aten::add_") == [(Phase.UPDATE, None, 4)]


def test_collectives_lie_on_a_track_of_their_own(tmp_path: Path) -> None:
    events = [
        event("c10d::allreduce_", 0, 5),
        event("gloo:all_reduce", 2, 30, "user_annotation", tid=9),
        event("aten::mm", 40, 5),
    ]
    found = spans(tmp_path, events)
    assert [(one.name, one.track.kind, one.phase) for one in found] == [
        ("c10d::allreduce_", TrackKind.COMPUTE, Phase.COMMUNICATION),
        ("aten::mm", TrackKind.COMPUTE, None),
        ("gloo:all_reduce", TrackKind.COMMUNICATION, Phase.COMMUNICATION),
    ]


def test_kernels_of_a_device_compute_with_the_context_of_their_launch(tmp_path: Path) -> None:
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
    assert (found.name, found.source.track.kind, found.target.track.kind) == (
        "launch",
        TrackKind.HOST,
        TrackKind.COMPUTE,
    )


def test_host_events_of_a_gpu_trace_are_on_host_tracks_and_copies_on_a_track_of_their_kind(tmp_path: Path) -> None:
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
        ("Memcpy HtoD", "copy"),
        ("Memset", "compute"),
    ]


def test_spans_of_a_track_never_cross(tmp_path: Path) -> None:
    events = [event("outer", 0, 10.0004), event("inner", 4, 6.0009), event("next", 10.0004, 1)]
    outer, inner, following = spans(tmp_path, events)
    assert inner.end_ns <= outer.end_ns <= following.start_ns


def test_kernels_of_the_backward_pass_belong_to_the_step_in_which_autograds_thread_launched_them(
    tmp_path: Path,
) -> None:
    """Where a device computes, autograd works on a thread of its own while the program waits, without a mark."""
    back = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        *(mark(f"step:{number}", 100 * number, 100) for number in (1, 2)),
        *(event(back, 100 * number + 20, 50, tid=2, **{"Sequence number": number}) for number in (1, 2)),
        *(
            event("cudaLaunchKernel", 100 * number + 30, 2, "cuda_runtime", tid=2, correlation=number)
            for number in (1, 2)
        ),
        event("cudaLaunchKernel", 320, 2, "cuda_runtime", tid=2, correlation=3),
        *(event("sgemm", 500 * number, 400, "kernel", pid=0, tid=7, correlation=number) for number in (1, 2, 3)),
    ]
    found = spans(tmp_path, events)
    assert [one.step for one in found if one.name == "sgemm"] == [1, 2, None]
    assert [one.step for one in found if one.name == back] == [1, 2]


def test_threads_without_marks_get_no_step_on_a_cpu(tmp_path: Path) -> None:
    events = [mark("step:1", 0, 100), event("gloo:all_reduce", 20, 300, "user_annotation", tid=9)]
    assert phases_and_layers(spans(tmp_path, events), "gloo:all_reduce") == [(Phase.COMMUNICATION, None, None)]


def test_kernel_without_its_launch_belongs_to_the_operator_with_its_external_id(tmp_path: Path) -> None:
    external = {"External id": 77}
    events = [
        mark("step:1", 0, 100),
        mark("layer:dense", 0, 50),
        event("aten::mm", 5, 10, **external),
        event("sgemm", 120, 30, "kernel", pid=0, tid=7, correlation=3, **external),
    ]
    (found,) = [one for one in spans(tmp_path, events) if one.name == "sgemm"]
    assert (found.op, found.layer, found.step) == ("aten::mm", "dense", 1)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "copy host to device"),
        ("Memcpy DtoH (Device -> Pinned)", "copy device to host"),
        ("Memcpy DtoD (Device -> Device)", "copy device to device"),
        ("Memcpy PtoP (Device -> Device)", "copy between devices"),
    ],
)
def test_copies_say_their_direction_and_keep_the_layer_of_their_launch(
    tmp_path: Path, name: str, operation: str
) -> None:
    events = [
        mark("layer:dense", 0, 50),
        event("cudaMemcpyAsync", 8, 2, "cuda_runtime", correlation=3),
        event(name, 20, 30, "gpu_memcpy", pid=0, tid=7, correlation=3),
    ]
    (found,) = [one for one in spans(tmp_path, events) if one.name == name]
    assert (found.track.name, found.op, found.layer) == ("copy", operation, "dense")


def test_device_work_keeps_its_stream_its_launch_and_a_copys_size(tmp_path: Path) -> None:
    on_device = {"pid": 0, "tid": 7, "stream": 7}
    events = [
        event("cudaMemcpyAsync", 8, 2, "cuda_runtime", correlation=3, stream=7, bytes=64),
        event("Memcpy HtoD", 20, 30, "gpu_memcpy", correlation=3, bytes=64, **on_device),
        event("sgemm", 60, 5, "kernel", correlation=4, **on_device),
        event("sgemm", 70, 5, "kernel", pid=0, tid=7, stream="default"),
    ]
    assert [(one.stream, one.correlation, one.size_bytes) for one in spans(tmp_path, events)] == [
        (None, None, None),
        (7, 3, 64),
        (7, 4, None),
        (None, None, None),
    ]


def test_flow_to_a_copy_ends_on_the_copys_track(tmp_path: Path) -> None:
    launch = {"cat": "ac2g", "name": "ac2g"}
    events = [
        event("cudaMemcpyAsync", 8, 2, "cuda_runtime", correlation=3),
        event("sgemm", 11, 5, "kernel", pid=0, tid=7),
        event("Memcpy HtoD", 20, 30, "gpu_memcpy", pid=0, tid=7, correlation=3),
        flow("s", 3, 8, **launch),
        flow("f", 3, 20, pid=0, tid=7, **launch),
    ]
    (found,) = torch.spans(torch.read(chrome(tmp_path / "trace.json", events)), 0)[1]
    assert (found.source.track.kind, found.target.track.kind) == (TrackKind.HOST, TrackKind.COPY)


def test_kernels_that_overlap_on_one_stream_get_tracks_on_which_none_cross(tmp_path: Path) -> None:
    events = [event("k", ts, dur, "kernel", pid=0, tid=7) for ts, dur in ((0, 50), (20, 60), (50, 40), (85, 5))]
    assert [one.track.name for one in spans(tmp_path, events)] == ["compute", "compute 2", "compute", "compute 2"]


def test_time_of_a_step_is_that_of_its_kernels_and_not_of_its_dispatch(tmp_path: Path) -> None:
    """Five steps are dispatched in 100 us each; their kernels run for 500 us each, one after another."""
    events = [mark(f"step:{number}", 100 * (number - 1), 100) for number in range(1, 6)]
    for number in range(1, 6):
        events.append(event("cudaLaunchKernel", 100 * number - 50, 5, "cuda_runtime", correlation=number))
        events.append(event("sgemm", 100 + 500 * (number - 1), 500, "kernel", pid=0, tid=7, correlation=number))
    conversion.make([chrome(tmp_path / "epoch1.worker0.json", events)], tmp_path / "trace.json.gz", "torch")
    found = read_table(tmp_path / "trace.json.gz")
    assert (found.device, found.steps, found.step_time_s) == ("gpu", 5, pytest.approx(500e-6))
    assert (found.busy_share, found.computed_s) == (pytest.approx(1), pytest.approx(2500e-6))


def two_steps_of_a_rank(late: float) -> list[dict[str, Any]]:
    """Two steps of 100 us; a kernel of 60 us, then a collective that begins 10 us before its end and ends when the
    slower rank's does, `late` us after this one's own."""
    events = []
    for number in (1, 2):
        begin = 100.0 * (number - 1)
        correlation = 10 * number
        events += [
            event(f"ProfilerStep#{number}", begin, 100, "user_annotation"),
            event("cudaLaunchKernel", begin + 5, 2, "cuda_runtime", correlation=correlation),
            event("cudaLaunchKernel", begin + 9, 2, "cuda_runtime", correlation=correlation + 1),
            event("sgemm", begin + 10, 60, "kernel", pid=0, tid=7, correlation=correlation),
            event(
                "ncclDevKernel_AllReduce", begin + 60, 20 + late, "kernel", pid=0, tid=21, correlation=correlation + 1
            ),
        ]
    return events


def test_two_ranks_of_a_job_are_two_workers_with_the_same_steps_and_their_own_overlap(tmp_path: Path) -> None:
    files = [
        chrome(tmp_path / conversion.file_name(1, rank, ".json"), two_steps_of_a_rank(late))
        for rank, late in enumerate((0.0, 10.0))
    ]
    conversion.make(files, tmp_path / "trace.json.gz", "torch")
    found = read_table(tmp_path / "trace.json.gz")
    assert (found.workers, found.steps, found.window_s) == (2, 2, pytest.approx(200e-6))
    assert {part.name: part.time_s for part in found.by_kind} == {
        "compute": pytest.approx(4 * 60e-6),
        "communication": pytest.approx((2 * 20 + 2 * 30) * 1e-6),
    }
    assert found.overlap_share == pytest.approx(4 * 10 / 100)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not next to this checkout")
def test_public_trace_of_two_gpus_has_the_steps_kinds_and_overlap_that_its_events_say() -> None:
    """Rank 0 of a job on two A100s (HolisticTraceAnalysis, MIT licence), computed from its JSON by correlation."""
    import gzip
    import json

    path = PUBLIC / "ddp_nccl_2gpu_rank0.json.gz"
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    )
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "cuda_runtime"}
    times: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for e in events:
        if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            called = calls[e["args"]["correlation"]]
            number = next(at for at, (begin, end) in enumerate(steps) if begin <= called < end)
            kind = "copy" if e["cat"] == "gpu_memcpy" else "communication" if "nccl" in e["name"] else "compute"
            times.setdefault((number, kind), []).append((e["ts"], e["ts"] + e["dur"]))

    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for one in torch.spans(torch.read(path), 0)[0]:
        if one.track.kind in WORKING:
            assert one.step is not None
            place = one.step - 5, str(one.track.kind)
            found.setdefault(place, []).append((one.start_ns / 1000, one.end_ns / 1000))
    assert {key: len(one) for key, one in times.items()} == {key: len(one) for key, one in found.items()}
    for key, one in times.items():
        assert covered(found[key]) == pytest.approx(covered(one), rel=1e-3)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not next to this checkout")
def test_public_trace_of_two_gpus_makes_the_table_that_a_reader_of_its_json_computes(tmp_path: Path) -> None:
    conversion.make_of(PUBLIC / "ddp_nccl_2gpu_rank0.json.gz", tmp_path / "trace.json.gz")
    found = read_table(tmp_path / "trace.json.gz")
    # Of the JSON file: 3 steps of 222.4, 219.7 and 224.9 ms that follow one another; NCCL's kernels cover 46.9 ms,
    # of which 7.3 ms with other kernels.
    assert (found.device, found.steps) == ("gpu", 3)
    assert found.window_s == pytest.approx(0.66722, rel=1e-4)
    assert {part.name: part.count for part in found.by_kind} == {"compute": 2793, "communication": 21, "copy": 960}
    assert (found.busy_share, found.overlap_share) == (pytest.approx(0.236, rel=1e-3), pytest.approx(0.1567, rel=1e-3))


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not next to this checkout")
@pytest.mark.parametrize("name", ["gloo_cpu_rank34", "simple_add", "ddp_nccl_2gpu_rank0"])
def test_public_trace_preserves_the_time_of_operators_and_kernels(name: str) -> None:
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
        if span.track.kind in WORKING and not span.name.startswith("gloo:"):
            kept.setdefault(span.track, []).append((span.start_ns / 1000, span.end_ns / 1000))
    expected, actual = (sum(map(covered, one.values())) for one in (wanted, kept))
    assert actual == pytest.approx(expected, rel=1e-3)
