"""Files of JAX and TensorFlow without a graph: one error that names the file and the event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keras_matrix.analysis.whatif.graph import GraphError
from keras_matrix.records.traces.request import TraceError
from tests.analysis.whatif.reconstruct.xplane.profiles import (
    F32,
    PROGRAM,
    Op,
    clock,
    graph,
    host,
    node,
    ran,
    step,
    training,
    write,
    write_jax,
)
from tests.records.traces.synthetic import hlo_array


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch2.worker0.xplane.pb"


MARKS = [step(1, 0, 40), step(2, 40, 80)]
OPS = [Op("dot.1", 1, 9), Op("dot.1", 41, 49, 2)]


def message_of(*paths: Path) -> str:
    with pytest.raises(GraphError) as caught:
        graph(*paths)
    return str(caught.value)


def test_a_truncated_file_is_named(path: Path) -> None:
    write_jax(path, MARKS, OPS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}: is not a complete profile of JAX or TensorFlow"):
        graph(path)


def test_a_damaged_program_is_named(path: Path) -> None:
    """Mutation: `_programs` of reading.py lets the errors of a program through."""
    events = [event for number, op in enumerate(OPS, 1) for event in ran(op, number)]
    shape = hlo_array(F32, 4, 4)
    write(path, MARKS, events, {PROGRAM: training().replace(shape, b"\x0c" * len(shape))})
    with pytest.raises(TraceError, match=rf"^{re.escape(str(path))}: contains an invalid program: "):
        graph(path)


def test_a_device_without_an_operation_of_each_step_is_named(path: Path) -> None:
    """Mutation: `graph_of` does not check that each device has a return."""
    third = [Op("dot.1", 81, 89, 3), Op("dot.1", 0, 0, device=1)]
    write_jax(path, [*MARKS, step(3, 80, 120)], [*OPS, *third])
    assert message_of(path) == f"{path}: a device ran no operation that each step has; record the trace again"


def test_a_foreign_file_is_named(path: Path) -> None:
    path.write_text('{"traceEvents": []}')
    with pytest.raises(TraceError, match=re.escape(str(path))):
        graph(path)


def test_a_file_without_steps_says_how_to_mark_them(path: Path) -> None:
    write_jax(path, [host("main", 0, 50)], OPS)
    assert message_of(path).startswith(f"{path}: contains no step; mark steps with jax.profiler.StepTraceAnnotation")


def test_a_step_without_operations_is_named(path: Path) -> None:
    write(path, MARKS, [node("a/MatMul:MatMul", 41, 49)])
    assert message_of(path) == f"{path}: 'step 1' contains no operation; record the trace again"


def test_operations_without_durations_are_named(path: Path) -> None:
    write(path, MARKS, [node("a/MatMul:MatMul", 1, 9), node("b/MatMul:MatMul", 45, 45)])
    assert message_of(path) == (
        f"{path}: the operations of 'step 2', such as 'b/MatMul', have no duration; record the trace again"
    )


def test_steps_that_run_backwards_are_named(path: Path) -> None:
    write_jax(path, [step(1, 40, 80), step(2, 0, 39)], OPS)
    assert message_of(path) == (
        f"{path}: 'step 2' begins at 0 ns, before 'step 1' ends at 80000 ns: the clock ran backwards, or steps overlap"
    )


def test_ranks_with_other_numbers_of_steps_are_named(path: Path) -> None:
    other = path.with_name("epoch2.worker1.xplane.pb")
    write_jax(path, MARKS, OPS)
    write_jax(other, MARKS[:1], OPS[:1])
    assert message_of(path, other) == (
        f"{other}: worker 1 has 1 steps, worker 0 in {path} has 2; record the same steps on all ranks"
    )


def test_two_files_with_the_same_rank_are_named(path: Path) -> None:
    other = path.with_name("epoch2.worker1.xplane.pb")
    write_jax(path, MARKS, [*OPS, *(one._replace(device=1) for one in OPS)])
    write_jax(other, MARKS, OPS)
    assert message_of(path, other) == (
        f"{path} and {other} are both of rank 1; name one file for each rank, with only one of these two, in place of "
        "a folder"
    )


def test_epochs_with_other_numbers_of_devices_are_named(path: Path) -> None:
    other = path.with_name("epoch3.worker0.xplane.pb")
    write_jax(path, MARKS, [*OPS, *(one._replace(device=1) for one in OPS)])
    write_jax(other, MARKS, OPS)
    assert message_of(path, other) == (f"{other}: has operations of 1 devices, {path} of 2; give the files of one run")


def test_damaged_names_of_layers_are_named(path: Path) -> None:
    write_jax(path, MARKS, OPS)
    names = path.parent / "names.json"
    names.write_text("{")
    with pytest.raises(TraceError, match=rf"^{re.escape(str(names))}: is damaged"):
        graph(path)


def test_operations_outside_of_steps_are_reported(path: Path) -> None:
    events = [event for op in OPS for event in ran(op, 1)]
    others = [
        ran(Op("copy.1", begin, begin + 4, number), 1, "jit_other", 10) for number, begin in ((3, 50), (4, 60), (5, 70))
    ]
    write(path, MARKS, [*events, *(event for one in others for event in one)])
    made = graph(path)
    assert f"{path}: 1 operations (0.006 ms a step) belong to no step and are left out: 'copy.1'" in made.header.caveats


def test_operations_that_cannot_be_divided_among_steps_are_named(path: Path) -> None:
    write_jax(path, MARKS, [*OPS, Op("dot.1", 52, 59, 3)])
    assert message_of(path) == (
        f"{path}: 'step 1' contains no operation; 1 operations belong to no step, such as 'dot.1'; record the trace"
        " again"
    )


def test_clocks_of_one_machine_are_aligned_by_its_own(path: Path) -> None:
    other = path.with_name("epoch2.worker1.xplane.pb")
    write_jax(path, [clock(0, 1_000_000), *MARKS], OPS)
    later = [one._replace(begin=one.begin + 7, end=one.end + 7) for one in OPS]
    write_jax(other, [clock(7, 1_000_000), step(1, 7, 47), step(2, 47, 87)], later)
    made = graph(path, other)
    assert made.header.clock_offsets_ns == (0, 0)
    assert made.header.caveats[-1].startswith("operations of a device overlap")
