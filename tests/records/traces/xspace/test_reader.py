"""JAX's and TensorFlow's events in the neutral trace."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from keras_matrix.records.traces.neutral import Phase, Span, TrackKind
from keras_matrix.records.traces.request import Names, TraceError
from keras_matrix.records.traces.xspace import reader, tracks
from tests.conftest import NIGHTLY
from tests.records.traces.synthetic import STATS, Made, message, plane

NAMES = Names(["dense"], "functional", "adam")
DOT, ADD = "jit(step)/jvp(functional)/dense/dot_general", "jit(step)/adam/add"


def program(**instructions: tuple[str, str]) -> bytes:
    made = [
        (2, message((1, n), (2, opcode), (7, message((2, origin))))) for n, (opcode, origin) in instructions.items()
    ]
    return message((1, message((1, "jit_step"), (3, message(*made)))))


def metadata(name: str, proto: bytes) -> tuple[int, bytes]:
    stat = (5, message((1, STATS.index("Hlo Proto") + 1), (6, proto)))
    entry = (4, message((1, 1), (2, message((1, 1), (2, name), stat))))
    stats = [(5, message((1, i), (2, message((1, i), (2, one))))) for i, one in enumerate(STATS, 1)]
    return 1, message((2, "/host:metadata"), entry, *stats)


def ran(name: str, begin: float, duration: float, run: int = 1, **more: int | str) -> Made:
    stats = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 9, "run_id": run, **more}
    return name, begin, duration, stats


def spans(path: Path, *planes: tuple[int, bytes], names: Names = NAMES) -> list[Span]:
    path.write_bytes(message(*planes))
    return tracks.spans(reader.read(path), 0, names)


def worked(found: list[Span]) -> list[Span]:
    return [one for one in found if one.track.kind in (TrackKind.COMPUTE, TrackKind.COMMUNICATION)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch2.worker0.xplane.pb"


def test_programs_are_kept_as_they_are_stored(path: Path) -> None:
    proto = program(**{"dot.3": ("dot", DOT)})
    path.write_bytes(message(metadata("jit_step(9)", proto), plane("/host:CPU", {"thread": [ran("dot.3", 0, 5)]})))
    assert reader.read(path).programs == {"jit_step(9)": proto}


def test_operations_are_in_the_order_of_their_spans(path: Path) -> None:
    events = [ran("outer", 3, 9), ran("inner", 3, 5), ran("first", 0, 1)]
    found = spans(path, plane("/host:CPU", {"thread": events}))
    names = [one.name for one in tracks.operations(reader.read(path))]
    assert (names, [one.name for one in worked(found)]) == (["first", "outer", "inner"], names)


def test_instructions_are_looked_up_in_the_stored_program(path: Path) -> None:
    proto = program(**{"dot.3": ("dot", DOT), "fusion.1": ("fusion", ADD), "all-reduce.2": ("all-reduce", "")})
    events = [ran("dot.3", 0, 5), ran("fusion.1", 6, 1), ran("all-reduce.2", 8, 2)]
    found = worked(spans(path, metadata("jit_step(9)", proto), plane("/host:CPU", {"thread": events})))
    assert [(one.name, one.op, one.phase, one.layer) for one in found] == [
        ("dot.3", "dot", Phase.FORWARD, "dense"),
        ("fusion.1", "fusion (add)", Phase.UPDATE, None),
        ("all-reduce.2", "all-reduce", Phase.COMMUNICATION, None),
    ]
    assert [one.track.name for one in found] == ["compute", "compute", "communication"]


def test_programs_with_equal_names_are_distinguished_by_number(path: Path) -> None:
    planes = [metadata(f"jit_step({k})", program(**{"dot.3": (f"dot{k}", "")})) for k in (8, 9)]
    events = [ran("dot.3", 0, 5, program_id=8), ran("dot.3", 6, 5, program_id=9), ran("dot.3", 12, 5, program_id=7)]
    found = worked(spans(path, *planes, plane("/host:CPU", {"thread": events})))
    assert [one.op for one in found] == ["dot8", "dot9", "dot9"]


def test_a_programs_number_is_read_as_its_name_has_it_without_a_sign(path: Path) -> None:
    numbers = ((1 << 64) - 1, 0, 9)
    planes = [metadata(f"jit_step({number})", program(**{"dot.3": (f"dot{number}", "")})) for number in numbers]
    events = [ran("dot.3", at, 1, program_id=number) for at, number in enumerate(numbers)]
    found = worked(spans(path, *planes, plane("/host:CPU", {"thread": events})))
    assert [one.op for one in found] == [f"dot{number}" for number in numbers]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("/device:GPU:1", "gpu"),
        ("/device:TPU:0", "tpu"),
        ("/device:CUSTOM:Other Trace", "custom"),
        ("/host:CPU", "cpu"),
    ],
)
def test_device_is_identified_by_the_planes_name(path: Path, name: str, device: str) -> None:
    path.write_bytes(message(plane(name, {"Stream": [("sgemm", 0, 5, {})]})))
    assert reader.read(path).device == device


def test_without_its_program_an_instruction_has_its_name_and_no_more(path: Path) -> None:
    (found,) = worked(spans(path, plane("/host:CPU", {"thread": [ran("multiply_add.12.3", 0, 5)]})))
    assert (found.op, found.phase, found.layer) == ("multiply_add", None, None)


def test_instruction_with_a_separate_end_event_has_a_separate_track(path: Path) -> None:
    events = [
        ran("dot.1", 0, 2, _p=77),
        ran("add.1", 2, 1, _p=78),
        ("end: add.1", 2.5, 0.25, {"_c": 78}),
        ran("dot.2", 4, 1, _p=79),
    ]
    ends = [("end: dot.1", 9, 1, {"_c": 77}), ("end: dot.2", 12, 1, {"_c": 79})]
    found = worked(spans(path, plane("/host:CPU", {"one": events, "other": ends})))
    assert [(one.name, one.start_ns, one.end_ns, one.track.lane) for one in found] == [
        ("dot.1", 0, 10_000, 0),
        ("add.1", 2000, 3000, 1),
        ("dot.2", 4000, 13_000, 2),
    ]


def test_instruction_without_a_later_end_event_stays_on_its_thread(path: Path) -> None:
    events = [ran("dot.1", 0, 2, _p=7), ran("dot.2", 4, 2, _p=8), ran("dot.3", 8, 2, _p=0)]
    ends = [("end: dot.2", 5, 1, {"_c": 8}), ("end: dot.4", 20, 1, {"_c": 9}), ("end: dot.3", 30, 1, {})]
    found = worked(spans(path, plane("/host:CPU", {"one": events, "other": ends})))
    assert [(one.name, one.end_ns, one.track.lane) for one in found] == [
        ("dot.1", 2000, 0),
        ("dot.2", 6000, 0),
        ("dot.3", 10_000, 0),
    ]


def test_last_of_several_end_events_counts(path: Path) -> None:
    ends = [("end: dot.1", 99 - at, 1, {"_c": 7 + at % 2}) for at in range(96)]
    nobodys = ("end: dot.1", 90, 1, {"_c": 0})
    lines = {"one": [ran("dot.1", 0, 2, _p=7), ran("dot.1", 20, 2), ("a:Mul", 30, 2, {})], "other": [*ends, nobodys]}
    found = worked(spans(path, plane("/host:CPU", lines)))
    assert [one.end_ns for one in found] == [6000, 22_000, 32_000]


def test_threads_have_tracks_of_their_own_though_several_hosts_number_them_alike(path: Path) -> None:
    hosts = [
        plane(
            name, {line: [(f"{name[-1]}{line}:Mul", begin, 2, {}), ("late:Add", begin + 20, 2, {})] for line in lines}
        )
        for name, begin, lines in (("/host:A", 4, "ab"), ("/host:B", 2, "ab"))
    ]
    found = worked(spans(path, *hosts))
    assert [(one.name, one.track.name) for one in found if one.op == "Mul"] == [
        ("Ba", "compute"),
        ("Bb", "compute 2"),
        ("Aa", "compute 3"),
        ("Ab", "compute 4"),
    ]
    assert [one.track.lane for one in found if one.op == "Add"] == [0, 1, 2, 3]


def test_marked_threads_have_tracks_of_their_own_though_several_hosts_number_them_alike(path: Path) -> None:
    marks: list[Made] = [("Execute", 1, 1, {}), ("kbm:phase:input", 0, 2, {}), ("kbm:phase:input", 9, 1, {})]
    found = spans(path, *(plane(name, {"a": marks, "b": marks}) for name in ("/host:A", "/host:B")))
    tracks = ["input", "input 2", "input 3", "input 4", "host", "host 2", "host 3", "host 4"]
    assert [one.track.name for one in found] == [*tracks, *tracks[:4]]


def test_an_instruction_of_no_run_is_of_the_step_within_which_it_ends(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 0, 4, {}), ("kbm:step:2", 5, 4, {})],
        "pool": [
            ran("dot.1", 1, 1, run=(1 << 64) - 1),
            ran("dot.1", 6, 1, run=(1 << 64) - 1),
            ran("dot.1", 8, 2, run=(1 << 64) - 1),
            ("add.1", 8.5, 0.5, {"hlo_op": "add.1"}),
        ],
    }
    assert [one.step for one in worked(spans(path, plane("/host:CPU", lines)))] == [1, 2, None, 2]


def test_the_runs_of_a_program_are_the_steps_that_called_it_though_they_begin_later(path: Path) -> None:
    program_thread = [
        ("kbm:step:1", 1, 1, {}),
        ("kbm:step:2", 3, 1, {}),
        ("PjitFunction(step)", 3.1, 0.5, {}),
    ]
    pool = [ran("dot.1", 0.5, 0.1, run=4), ran("dot.1", 1.5, 4, run=5), ran("dot.1", 6, 4, run=6)]
    found = spans(path, plane("/host:CPU", {"main": program_thread, "pool": pool}))
    assert [one.step for one in worked(found)] == [None, 1, 2]
    assert [(one.name, one.track.kind) for one in found[:3]] == [
        ("step 1", TrackKind.STEPS),
        ("step 2", TrackKind.STEPS),
        ("PjitFunction(step)", TrackKind.HOST),
    ]


def test_of_a_program_that_a_step_runs_twice_two_runs_in_a_row_are_a_steps(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 0, 1, {}), ("kbm:step:2", 2, 1, {})],
        "pool": [ran("dot.1", 10 + at, 1, run=at) for at in range(4)],
    }
    assert [one.step for one in worked(spans(path, plane("/host:CPU", lines)))] == [1, 1, 2, 2]


def test_program_whose_runs_are_not_a_multiple_of_the_steps_has_no_step(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 0, 1, {}), ("kbm:step:2", 2, 1, {})],
        "pool": [ran("dot.1", at, 1, run=at) for at in (1, 3, 5)],
    }
    assert {one.step for one in worked(spans(path, plane("/host:CPU", lines)))} == {None}


def test_runs_are_counted_of_each_program_alone_in_the_order_in_which_they_began(path: Path) -> None:
    runs = ((8, 7, 0), (9, 5, 1), (9, 6, 2), (4, 5, 10), (9, 7, 11), (8, 5, 12), (9, 8, 13))  # program, run, begin
    lines = {
        "main": [("kbm:step:2", 10, 9, {}), ("kbm:step:1", 0, 9, {})],
        "pool": [ran("dot.1", begin, 1, run=run, program_id=program) for program, run, begin in reversed(runs)],
    }
    found = worked(spans(path, plane("/host:CPU", lines)))
    assert [one.step for one in found] == [1, 1, 1, None, 2, 2, 2]


def test_an_instruction_is_of_its_runs_step_though_it_works_while_another_lasts(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 0, 1, {}), ("kbm:step:2", 2, 7, {})],
        "pool": [ran("dot.1", at, 1, run=run % (1 << 64)) for at, run in ((1, -5), (3, -5), (5, 6))],
    }
    assert [one.step for one in worked(spans(path, plane("/host:CPU", lines)))] == [1, 1, 2]


def test_an_operation_may_begin_and_end_with_its_step(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 1, 4, {}), ("kbm:step:2", 5, 4, {})],
        "pool": [(f"{begin}:Mul", begin, 4, {}) for begin in (0, 1, 4, 5, 6)],
    }
    assert [one.step for one in worked(spans(path, plane("/host:CPU", lines)))] == [None, 1, None, 2, None]


def test_the_time_of_a_kernel_does_not_tell_its_step(path: Path) -> None:
    planes = [
        plane("/host:CPU", {"main": [("kbm:step:1", 0, 9, {})]}),
        plane("/device:GPU:0", {"S": [("a", 1, 1, {})]}),
    ]
    assert [one.step for one in worked(spans(path, *planes))] == [None]


def test_operations_of_tensorflow_are_identified_by_path(path: Path) -> None:
    lines = {
        "main": [("kbm:step:1", 0, 50, {})],
        "pool": [
            ("functional/dense/MatMul:MatMul", 1, 2, {}),
            ("gradient_tape/functional/dense/MatMul:MatMul", 4, 2, {}),
            ("adam/Mul_3:Mul", 7, 1, {}),
            ("collective_of_2/AddN:AddN", 9, 1, {}),
            ("IteratorGetNext:IteratorGetNext", 11, 1, {}),
            ("ExecutorState::Process", 0, 60, {}),
            ("late:Cast", 70, 1, {}),
        ],
    }
    found = worked(spans(path, plane("/host:CPU", lines)))
    assert [(one.op, one.phase, one.layer, one.step) for one in found] == [
        ("MatMul", Phase.FORWARD, "dense", 1),
        ("MatMul", Phase.BACKWARD, "dense", 1),
        ("Mul", Phase.UPDATE, None, 1),
        ("AddN", Phase.COMMUNICATION, None, 1),
        ("IteratorGetNext", Phase.INPUT, None, 1),
        ("Cast", None, None, None),
    ]


def test_batch_fetch_within_a_step_of_tensorflow_is_input(path: Path) -> None:
    lines = {
        "tf_data_iterator_get_next": [("IteratorGetNextOp::DoCompute", 1, 5, {}), ("Iterator::Root", 2, 3, {})],
        "main": [("kbm:step:1", 0, 9, {}), ("kbm:phase:input", 7, 2, {})],
    }
    found = spans(path, plane("/host:CPU", lines))
    assert [(one.name, one.track.name, one.phase, one.start_ns) for one in found] == [
        ("step 1", "steps", None, 0),
        ("input", "input", Phase.INPUT, 1000),
        ("input", "input 2", Phase.INPUT, 7000),
    ]


def test_devices_are_workers_and_their_derived_lines_are_not_counted_again(path: Path) -> None:
    kernel = ("sgemm", 0, 5, {"hlo_op": "dot.3", "hlo_module": "jit_step"})
    of_node = ("AddKernel", 6, 1, {"tf_op": "functional/dense/add:AddV2"})
    proto = program(**{"dot.3": ("dot", DOT)})
    planes = [
        plane(f"/device:GPU:{k}", {"Stream #7": [kernel, of_node], "XLA Ops": [kernel], "Steps": [("1", 0, 9, {})]})
        for k in (0, 1)
    ]
    path.write_bytes(message(metadata("jit_step", proto), *planes))
    recording = reader.read(path)
    found = tracks.spans(recording, 0, NAMES)
    assert recording.device == "gpu"
    assert [(one.track.worker, one.name, one.op, one.layer) for one in found] == [
        (0, "sgemm", "dot", "dense"),
        (1, "sgemm", "dot", "dense"),
        (0, "AddKernel", "AddV2", "dense"),
        (1, "AddKernel", "AddV2", "dense"),
    ]


def test_virtual_devices_of_one_process_are_workers(path: Path) -> None:
    events = [ran("dot.1", 6 * at, 5, device_ordinal=device) for at, device in enumerate((1, 0, (1 << 64) - 1))]
    found = worked(spans(path, plane("/host:CPU", {"pool": events})))
    assert [(one.track.worker, one.track.lane) for one in found] == [(1, 0), (0, 0), (0, 0)]


def test_logical_devices_of_tensorflow_are_identified_by_scopes(path: Path) -> None:
    names = ("worker_1/forward/MatMul:MatMul", "gradient_tape/replica_2/Mul:Mul", "AddN:AddN")
    events = [(name, 10 * at, 5, {}) for at, name in enumerate(names)]
    found = worked(spans(path, plane("/host:CPU", {"pool": events})))
    assert [one.track.worker for one in found] == [1, 2, 0]


def test_kernels_with_equal_names_have_their_own_instructions(path: Path) -> None:
    statistics = [
        {"tf_op": "functional/dense/add:AddV2"},
        {"tf_op": "adam/Mul:Mul"},
        {},
        {"hlo_op": "dot.3", "hlo_module": "jit_step", "tf_op": "adam/Mul:Mul"},
        {"hlo_op": "add.1", "hlo_module": "jit_step", "program_id": 9},
        {"hlo_op": "add.1"},
        {"tf_op": "jit(step)/mul"},
    ]
    kernels = [("loop", at, 1, stats) for at, stats in enumerate(statistics)]
    programs = metadata("jit_step(9)", program(**{"dot.3": ("dot", DOT), "add.1": ("fusion", ADD)}))
    found = worked(spans(path, programs, plane("/device:GPU:0", {"Stream #7": kernels, "Stream #8": []})))
    assert [(one.name, one.op, one.layer, one.phase) for one in found] == [
        ("loop", "AddV2", "dense", Phase.FORWARD),
        ("loop", "Mul", None, Phase.UPDATE),
        ("loop", "loop", None, None),
        ("loop", "dot", "dense", Phase.FORWARD),
        ("loop", "fusion (add)", None, Phase.UPDATE),
        ("loop", "add", None, None),
        ("loop", "loop", None, None),
    ]


def test_streams_of_a_device_have_tracks_of_their_own(path: Path) -> None:
    lines = {"Stream #7": [("sgemm", 0, 5, {})], "Stream #8": [("copy", 1, 5, {}), ("ncclKernel:Nccl", 2, 1, {})]}
    other = plane("/device:CUSTOM:Other Trace", {"Other": [("copy", 3, 5, {})]})
    found = worked(spans(path, plane("/device:GPU:0", lines), other))
    assert [one.track.name for one in found] == ["compute", "compute 2", "communication", "compute 3"]


def test_instruction_without_a_program_number_uses_the_last_program_with_its_name(path: Path) -> None:
    planes = [metadata(f"jit_step({k})", program(**{"dot.3": (f"dot{k}", "")})) for k in (0, 9)]
    events: list[Made] = [
        ("dot.3", 0, 1, {"hlo_op": "dot.3", "hlo_module": "jit_step"}),
        ran("dot.3", 2, 1, program_id=0),
        ("dot.3", 4, 1, {"hlo_op": "dot.3", "program_id": 9}),
    ]
    found = worked(spans(path, *planes, plane("/host:CPU", {"thread": events})))
    assert [one.op for one in found] == ["dot9", "dot0", "dot"]


def test_outer_span_comes_first_among_simultaneous_ones(path: Path) -> None:
    lines = {
        "main": [("Inner", 0, 1, {}), ("Outer", 0, 8, {}), ("kbm:step:1", 0, 9, {})],
        "pool": [ran("dot.1", 2, 1), ran("fusion.1", 2, 3), ran("call.1", 2, 5), ran("copy.1", 2, 3)],
    }
    found = spans(path, plane("/host:CPU", lines))
    assert [one.name for one in found] == ["step 1", "Outer", "Inner", "call.1", "fusion.1", "copy.1", "dot.1"]


def test_devices_of_a_file_are_workers_from_its_first_on(path: Path) -> None:
    events = [ran("dot.1", device, 1, device_ordinal=device) for device in (0, 3)]
    path.write_bytes(message(plane("/host:CPU", {"pool": [("kbm:step:1", 0, 9, {}), *events]})))
    found = tracks.spans(reader.read(path), 2, NAMES)
    assert [(one.name, one.track.worker) for one in found] == [("step 1", 2), ("dot.1", 2), ("dot.1", 5)]


def test_consecutive_operations_with_separate_ends_share_a_track(path: Path) -> None:
    of_second = ((1, 9), (2, 6), (6, 8), (7, 8), (8, 12), (9, 20), (9.5, 10))
    begun = [(0, 0, 7.5), *((1, begin, end) for begin, end in of_second), (0, 21, 22)]
    events = [ran("dot.1", begin, 0.25, _p=at, device_ordinal=on) for at, (on, begin, _) in enumerate(begun)]
    ends = [("end: dot.1", end - 0.25, 0.25, {"_c": at}) for at, (_, _, end) in enumerate(begun)]
    found = worked(spans(path, plane("/host:CPU", {"pool": events, "other": ends})))
    assert [one.track.lane for one in found if one.track.worker == 0] == [0, 0]
    assert [one.track.lane for one in found if one.track.worker == 1] == [0, 1, 1, 2, 1, 0, 2]


def test_marks_of_the_clock_are_read_and_not_shown(path: Path) -> None:
    path.write_bytes(message(plane("/host:CPU", {"main": [("kbm:clock:12345", 7, 1, {})]})))
    recording = reader.read(path)
    assert (recording.clocks, recording.marks) == ([(7000, 12345)], [])


def test_other_events_of_unmarked_threads_are_skipped(path: Path) -> None:
    lines = {
        "pool": [("ThreadpoolListener", 0, 1, {"_c": 3}), ran("dot.1", 1, 1), ("ThreadpoolListener", 2, 1, {})],
        "main": [("ThreadpoolListener", 0, 1, {}), ("kbm:step:1", 0, 9, {}), ("Execute", 3, 1, {"_p": 3})],
        "clock": [("kbm:clock:7", 0, 1, {}), ("Execute", 4, 1, {})],
    }
    found = spans(path, plane("/host:CPU", lines))
    assert sorted((one.name, one.track.name) for one in found) == [
        ("Execute", "host"),
        ("ThreadpoolListener", "host"),
        ("dot.1", "compute"),
        ("step 1", "steps"),
    ]


def test_of_many_names_each_event_has_its_own(path: Path) -> None:
    others = [(f"other {number}", number, 1, {}) for number in range(300)]
    events = [*others, ran("dot.1", 300, 1), *others, ran("add.2", 301, 1), ran("dot.1", 302, 1)]
    found = spans(path, plane("/host:CPU", {"pool": events}))
    assert [one.name for one in found] == ["dot.1", "add.2", "dot.1"]


def test_a_file_that_is_damaged_or_breaks_off_anywhere_is_read_or_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"main": [("kbm:step:1", 0, 9, {}), ran("dot.1", 1, 1, _p=7), ("end: dot.1", 2, 1, {"_c": 7})]}
    whole = message(metadata("jit_step(9)", program(**{"dot.1": ("dot", DOT)})), plane("/host:CPU", lines))
    values = (b"\0", b"\x7f", b"\xff")  # at night each at every byte, otherwise one pair of seven
    cut = [whole[:size] for size in range(1, len(whole), 1 if NIGHTLY else 3)]
    places = [(at, value) for at in range(len(whole)) for value in values]
    changed = [whole[:at] + value + whole[at + 1 :] for at, value in places[:: 1 if NIGHTLY else 7]]
    found = []
    for data in (*cut, *changed):
        monkeypatch.setattr(reader, "read_plain", lambda *_, data=data: data)
        with contextlib.suppress(TraceError):
            found.append(reader.read(path).whats)
    assert {what.name for whats in found for what in whats} >= {"dot.1"}
    assert 0 < len(found) < len(changed)
