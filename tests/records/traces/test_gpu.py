"""Profiles of a GPU by JAX and TensorFlow: which step each kernel belongs to, and what kind of work it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_matrix.analysis.traces import read_table
from keras_matrix.records.traces import conversion, neutral
from keras_matrix.records.traces.neutral import WORKING, Phase, Span, TrackKind
from keras_matrix.records.traces.request import Names
from keras_matrix.records.traces.table import TraceSummary
from keras_matrix.records.traces.xspace import reader, tracks
from keras_matrix.records.traces.xspace.operations import MOST_HOPS
from tests.records.traces import gpu
from tests.records.traces.gpu import (
    COPIES,
    DISPATCH_US,
    KERNEL_US,
    NCCL,
    STEPS,
    STREAM,
    call,
    copy,
    instruction,
    kernel,
)
from tests.records.traces.synthetic import Made, message, plane

EACH_STEP = list(range(1, STEPS + 1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch2.worker0.xplane.pb"


def spans(path: Path, *planes: tuple[int, bytes]) -> list[Span]:
    path.write_bytes(message(*planes))
    return tracks.spans(reader.read(path), 0, Names(["dense"], "functional", "adam"))


def table(path: Path, *planes: tuple[int, bytes]) -> TraceSummary:
    path.write_bytes(message(*planes))
    target = path.with_name("trace.json.gz")
    conversion.make([path], target, "jax")
    return read_table(target)


def steps_of(found: list[Span]) -> list[int | None]:
    return [one.step for one in found if one.track.kind in WORKING]


def test_kernel_belongs_to_the_step_that_launched_it_though_it_runs_during_a_later_dispatch(path: Path) -> None:
    found = [one for one in spans(path, *gpu.dispatched()) if one.track.kind is TrackKind.COMPUTE]
    assert [one.step for one in found] == EACH_STEP
    # The first kernel runs while the host dispatches steps 2 to 5, all others after the last dispatch.
    assert [one.start_ns // 1000 for one in found] == [100, 600, 1100, 1600, 2100]


def test_time_of_a_step_is_that_of_its_kernels_and_not_of_its_dispatch(path: Path) -> None:
    found = table(path, *gpu.dispatched())
    window_s = STEPS * KERNEL_US / 1e6  # that the host was 100 us ahead does not count
    assert (found.device, found.steps) == ("gpu", STEPS)
    assert found.window_s == pytest.approx(window_s)
    assert found.step_time_s == pytest.approx(window_s / STEPS)
    assert found.busy_share == pytest.approx(1)
    assert found.computed_s == pytest.approx(STEPS * KERNEL_US / 1e6)
    assert found.gaps == []


def test_work_after_the_last_step_that_no_step_launched_is_outside_the_window(path: Path) -> None:
    main = [*gpu.marks(), *gpu.calls(), call(99, 600)]
    streams = {STREAM: [*gpu.kernels(), kernel(99, 9000)]}
    found = table(path, plane("/host:CPU", {"main": main}), plane("/device:GPU:0", streams))
    assert found.window_s == pytest.approx(2500e-6)
    assert found.computed_s == pytest.approx(2500e-6)


def test_last_step_in_which_the_profiler_stopped_is_left_out_and_named(path: Path) -> None:
    """Of its two kernels the second had not ended."""
    host = plane(
        "/host:CPU", {"main": [*gpu.marks(), *gpu.calls(), *(call(n + 20, (n - 0.4) * 100) for n in EACH_STEP)]}
    )
    second = [kernel(n + 20, DISPATCH_US + (n - 1) * KERNEL_US + 400, 50, name="add") for n in EACH_STEP[:-1]]
    first = [kernel(n, DISPATCH_US + (n - 1) * KERNEL_US, 300) for n in EACH_STEP]
    found = table(path, host, plane("/device:GPU:0", {STREAM: [*first, *second]}))
    assert (found.steps, found.step_time_s) == (STEPS - 1, pytest.approx(500e-6))
    assert found.notes == ["step 5, the last one (0.100 ms), is left out: the profiler stopped before it ended"]


def test_work_that_was_launched_before_the_profile_is_left_out_and_named(path: Path) -> None:
    """Mutation: it counts for the step in which it happens to run."""
    streams = {STREAM: [*gpu.kernels(), kernel(99, 50, 50, name=NCCL)], COPIES: [kernel(98, 700, 30, name=NCCL)]}
    host = plane("/host:CPU", {"main": [*gpu.marks(), *gpu.calls()]})
    found = table(path, host, plane("/device:GPU:0", streams))
    assert [part.name for part in found.by_operation] == [gpu.KERNEL]
    assert found.overlap_share is None
    assert found.notes == [
        f"work of the device that was launched outside of the traced steps (0.080 ms in all) is left out: {NCCL[:60]}"
    ]


def test_window_ends_with_the_last_kernel_when_the_profile_has_no_launches(path: Path) -> None:
    kernels = [(name, begin, duration, {}) for name, begin, duration, _ in gpu.kernels()]
    planes = plane("/host:CPU", {"main": gpu.marks()}), plane("/device:GPU:0", {STREAM: kernels})
    assert steps_of(spans(path, *planes)) == [None] * STEPS
    assert table(path, *planes).window_s == pytest.approx(2600e-6)


def test_without_launches_instructions_that_ran_equally_often_in_each_step_are_divided_in_order(path: Path) -> None:
    once = [("add", begin, 200, instruction()) for _, begin, _, _ in gpu.kernels()]
    twice = [("mul", begin + at, 50, instruction("mul.2")) for _, begin, _, _ in gpu.kernels() for at in (250, 350)]
    odd = [("init", 100 + at, 1, instruction("iota.3")) for at in range(3)]
    early = [("add", -50, 10, instruction())]
    host = plane("/host:CPU", {"main": [(name, begin + 100, *rest) for name, begin, *rest in gpu.marks()]})
    shifted = [(name, begin + 100, *rest) for name, begin, *rest in (*early, *once, *twice)]
    found = spans(path, host, plane("/device:GPU:0", {STREAM: shifted, "Stream #14": odd}))
    assert [one.step for one in found if one.name == "add"] == [None, *EACH_STEP]
    assert [one.step for one in found if one.name == "mul"] == [step for step in EACH_STEP for _ in range(2)]
    assert [one.step for one in found if one.name == "init"] == [None] * 3


def test_launch_on_another_thread_belongs_to_the_step_that_gave_it_the_work(path: Path) -> None:
    """A context of type 1 from the step to the pool, one of type 2 from the pool to the thread that launches."""
    main: list[Made] = [*gpu.marks()]
    pool: list[Made] = []
    launcher: list[Made] = []
    for number in EACH_STEP:
        main.append(("Execute", (number - 0.5) * DISPATCH_US, 10, {"_pt": 1, "_p": number}))
        # Both threads are two steps behind the host.
        begin = (number + 1.5) * DISPATCH_US
        pool += [
            ("Enqueue", begin, 40, {"_ct": 1, "_c": number}),
            ("Hand over", begin + 10, 5, {"_pt": 2, "_p": number}),
        ]
        launcher += [("Launch", begin + 20, 40, {"_ct": 2, "_c": number}), call(number, begin + 30)]
    host = plane("/host:CPU", {"main": main, "pool": pool, "launcher": launcher})
    found = spans(path, host, plane("/device:GPU:0", {STREAM: gpu.kernels()}))
    assert steps_of(found) == EACH_STEP


def test_number_of_a_connection_that_two_steps_used_decides_no_step(path: Path) -> None:
    main = [*gpu.marks(), *(("Execute", at, 10, {"_pt": 1, "_p": 7}) for at in (50, 150))]
    launcher: list[Made] = [("Launch", 160, 40, {"_ct": 1, "_c": 7}), call(1, 170)]
    host = plane("/host:CPU", {"main": main, "launcher": launcher})
    assert steps_of(spans(path, host, plane("/device:GPU:0", {STREAM: [kernel(1, 300)]}))) == [None]


def test_connections_that_form_a_circle_end(path: Path) -> None:
    launcher: list[Made] = [
        ("Launch", 0, 90, {"_ct": 1, "_c": 7, "_pt": 1, "_p": 7}),
        *((f"Hop {hop}", 1, 80, {"_ct": 1, "_c": hop, "_pt": 1, "_p": hop + 1}) for hop in range(2 * MOST_HOPS)),
        call(1, 10),
    ]
    host = plane("/host:CPU", {"main": gpu.marks(), "launcher": launcher})
    assert steps_of(spans(path, host, plane("/device:GPU:0", {STREAM: [kernel(1, 300)]}))) == [None]


def test_launch_between_two_steps_has_no_step(path: Path) -> None:
    main = [("kbm:step:1", 0, 10, {}), call(1, 12), ("kbm:step:2", 20, 10, {}), call(2, 25)]
    host = plane("/host:CPU", {"main": main})
    found = spans(path, host, plane("/device:GPU:0", {STREAM: [kernel(1, 30, 5), kernel(2, 40, 5)]}))
    assert steps_of(found) == [None, 2]


def test_kernels_of_one_graph_launch_belong_to_its_step(path: Path) -> None:
    """XLA's command buffers: one call launches all kernels of a graph."""
    main = [*gpu.marks(), call(1, 50, name="cuGraphLaunch"), call(2, 150, name="cuGraphLaunch")]
    graphs = [kernel(number, begin, 10) for number, begin in ((1, 200), (1, 210), (2, 220), (2, 230))]
    found = spans(path, plane("/host:CPU", {"main": main}), plane("/device:GPU:0", {STREAM: graphs}))
    assert steps_of(found) == [1, 1, 2, 2]


def test_tensorflows_launches_on_other_threads_belong_to_the_step_that_waits_for_them(path: Path) -> None:
    node = "functional/dense/MatMul"
    pool: list[Made] = []
    for number in EACH_STEP:
        begin = (number - 1) * DISPATCH_US
        pool += [(f"{node}:MatMul", begin + 20, 20, {}), call(number, begin + 30)]
    kernels = gpu.kernels(tf_op=f"{node}:MatMul")
    found = spans(path, plane("/host:CPU", {"main": gpu.marks(), "pool": pool}), plane("/device:GPU:0", {"S": kernels}))
    computed = [one for one in found if one.track.kind is TrackKind.COMPUTE]
    assert [(one.op, one.phase, one.layer, one.step) for one in computed] == [
        ("MatMul", Phase.FORWARD, "dense", step) for step in EACH_STEP
    ]


def test_tensorflows_operations_on_the_host_do_not_compute_where_a_device_does(path: Path) -> None:
    node = ("functional/dense/MatMul:MatMul", 120, 60, {})
    lines = {"main": [*gpu.marks(), ("Function", 110, 80, {})], "pool": [node, call(1, 130)]}
    found = spans(path, plane("/host:CPU", lines), plane("/device:GPU:0", {STREAM: [kernel(1, 140, 500)]}))
    (hosted,) = [one for one in found if one.op == "MatMul"]
    assert (hosted.track.name, hosted.phase, hosted.layer, hosted.step) == ("host 2", Phase.FORWARD, "dense", 2)
    assert [one.name for one in found if one.track.kind in WORKING] == [gpu.KERNEL]


def test_tensorflows_operations_compute_on_a_machine_whose_gpu_does_nothing(path: Path) -> None:
    lines = {"main": gpu.marks(), "pool": [("functional/dense/MatMul:MatMul", 120, 60, {})]}
    planes = plane("/host:CPU", lines), plane("/device:GPU:0", {"_counters_": [("power_mw", 0, 0, {})]})
    (found,) = [one for one in spans(path, *planes) if one.track.kind is TrackKind.COMPUTE]
    assert (reader.read(path).device, found.step) == ("cpu", 2)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("MemcpyH2D", "copy host to device"),
        ("MemcpyD2H", "copy device to host"),
        ("MemcpyD2D", "copy device to device"),
        ("MemcpyP2P", "copy between devices"),
        ("MemcpyOther", "copy"),
    ],
)
def test_copies_are_on_a_track_of_their_kind_with_their_direction(path: Path, name: str, operation: str) -> None:
    streams = {STREAM: [kernel(1, 100)], COPIES: [copy(2, 150, 20, name)]}
    host = plane("/host:CPU", {"main": [*gpu.marks(), call(1, 50), call(2, 60, name="cuMemcpyHtoDAsync_v2")]})
    (found,) = [one for one in spans(path, host, plane("/device:GPU:0", streams)) if one.track.kind is TrackKind.COPY]
    assert (found.track.name, found.name, found.op, found.step) == ("copy", name, operation, 1)


def test_device_work_keeps_its_stream_its_launch_and_a_copys_size_in_the_file(path: Path) -> None:
    streams = {STREAM: [kernel(1, 100)], COPIES: [copy(2, 150, 20), (gpu.COPY, 200, 20, {})]}
    host = plane("/host:CPU", {"main": [*gpu.marks(), call(1, 50), call(2, 60, name="cuMemcpyHtoDAsync_v2")]})
    path.write_bytes(message(host, plane("/device:GPU:0", streams)))
    conversion.make([path], target := path.with_name("trace.json.gz"), "jax")
    found = [one for one in neutral.spans(target) if one.track.kind in WORKING]
    # The lines of the synthetic plane are numbered from 0.
    assert [(one.stream, one.correlation, one.size_bytes) for one in found] == [
        (0, 1, None),
        (1, 2, 4096),
        (1, None, None),
    ]
    others = [one for one in neutral.spans(target) if one.track.kind not in WORKING]
    assert {(one.stream, one.correlation, one.size_bytes) for one in others} == {(None, None, None)}


def test_kernels_of_nccl_communicate_and_their_overlap_with_compute_is_counted(path: Path) -> None:
    streams = {STREAM: [kernel(1, 100, 300)], "Stream #21(Compute)": [kernel(2, 300, 400, name=NCCL)]}
    host = plane("/host:CPU", {"main": [("kbm:step:1", 0, 100, {}), call(1, 50), call(2, 60)]})
    found = table(path, host, plane("/device:GPU:0", streams))
    assert {part.name: round(part.time_s * 1e6) for part in found.by_kind} == {"communication": 400, "compute": 300}
    assert {part.name: part.count for part in found.by_phase} == {"communication": 1, None: 1}
    # Of 400 us, 100 us while the other stream computed; the device is busy from 100 to 700 us, which is the step.
    assert found.overlap_share == pytest.approx(0.25)
    assert (found.busy_share, found.window_s) == (1, pytest.approx(600e-6))


def test_kernels_that_overlap_on_one_stream_get_tracks_on_which_none_cross(path: Path) -> None:
    """Kernels of a CUDA graph run at the same time and are reported on the graph's stream."""
    stream = [kernel(1, begin, duration) for begin, duration in ((100, 50), (120, 60), (150, 30), (160, 5))]
    found = [
        one for one in spans(path, plane("/device:GPU:0", {STREAM: stream})) if one.track.kind is TrackKind.COMPUTE
    ]
    assert [(one.start_ns // 1000, one.track.name) for one in found] == [
        (100, "compute"),
        (120, "compute 2"),
        (150, "compute 3"),
        (160, "compute 4"),
    ]


@pytest.mark.parametrize("name", ["MemoryAlloc", "MemoryFree", "MemoryResidency", "Overhead"])
def test_allocations_and_the_profilers_own_time_are_no_work_of_the_device(path: Path, name: str) -> None:
    stream = [kernel(1, 100), (name, 50, 5000, {"correlation_id": 2})]
    others = {"_counters_": [("power_mw", 0, 0, {})], "CUPTI overhead": [("Buffer flush", 0, 900, {})]}
    found = spans(path, plane("/device:GPU:0", {STREAM: stream, **others}))
    assert [one.name for one in found] == [gpu.KERNEL]


def test_annotated_steps_of_another_program_are_steps_and_count_from_1(path: Path) -> None:
    steps: list[Made] = [
        ("train", begin, duration, {"step_num": at}) for at, (_, begin, duration, _) in enumerate(gpu.marks())
    ]
    planes = plane("/host:CPU", {"main": [*steps, *gpu.calls()]}), plane("/device:GPU:0", {STREAM: gpu.kernels()})
    found = spans(path, *planes)
    assert [(one.name, one.step) for one in found if one.track.kind is TrackKind.STEPS] == [
        (f"step {number}", number) for number in EACH_STEP
    ]
    assert steps_of(found) == EACH_STEP


def test_steps_that_a_traced_cell_marked_go_before_annotated_ones(path: Path) -> None:
    main: list[Made] = [("train", 0, 500, {"step_num": 7}), *gpu.marks(), *gpu.calls()]
    found = spans(path, plane("/host:CPU", {"main": main}), plane("/device:GPU:0", {STREAM: gpu.kernels()}))
    assert [one.step for one in found if one.track.kind is TrackKind.STEPS] == EACH_STEP


def test_warnings_of_the_profiler_itself_are_reported_once_and_in_a_line(path: Path) -> None:
    dropped = "Dropped 7 events:\n callback buffer full"
    path.write_bytes(message(*gpu.dispatched(), (2, "CUPTI_ERROR_UNKNOWN"), (3, dropped), (3, dropped), (3, "")))
    target = path.with_name("trace.json.gz")
    head = conversion.make([path], target, "jax")
    warnings = ["CUPTI_ERROR_UNKNOWN", "Dropped 7 events: callback buffer full"]
    assert (head.warnings, neutral.head_of(target).warnings, read_table(target).warnings) == (warnings,) * 3


def test_kernels_of_two_gpus_of_one_process_are_two_workers_in_the_same_steps(path: Path) -> None:
    main = [*gpu.marks(), *gpu.calls(), *(call(100 + n, (n - 0.5) * DISPATCH_US + 10) for n in EACH_STEP)]
    second = [kernel(100 + n, DISPATCH_US + (n - 1) * KERNEL_US, KERNEL_US / 2) for n in EACH_STEP]
    planes = [plane("/device:GPU:0", {STREAM: gpu.kernels()}), plane("/device:GPU:1", {STREAM: second})]
    found = table(path, plane("/host:CPU", {"main": main}), *planes)
    # The second device is idle for half of each 500 us.
    assert (found.workers, found.steps) == (2, STEPS)
    assert found.window_s == pytest.approx(2500e-6)
    assert found.busy_share == pytest.approx((1 + 0.5) / 2)
