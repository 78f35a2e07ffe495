"""Files of JAX and TensorFlow without a graph: one error that names the file and the event."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from tests.golden import Golden
from tests.messages import check_messages, refusal
from tests.records.traces.synthetic import hlo_array

MARKS = [step(1, 0, 40), step(2, 40, 80)]
OPS = [Op("dot.1", 1, 9), Op("dot.1", 41, 49, 2)]
ON_TWO_DEVICES = [*OPS, *(operation._replace(device=1) for operation in OPS)]
FIRST, SECOND, NEXT_EPOCH = "epoch2.worker0.xplane.pb", "epoch2.worker1.xplane.pb", "epoch3.worker0.xplane.pb"


def truncated(folder: Path) -> None:
    write_jax(folder / FIRST, MARKS, OPS)
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:-40])


def with_a_damaged_program(folder: Path) -> None:
    """Mutation: `_programs` of reading.py lets the errors of a program through."""
    events = [event for number, operation in enumerate(OPS, 1) for event in ran(operation, number)]
    shape = hlo_array(F32, 4, 4)
    write(folder / FIRST, MARKS, events, {PROGRAM: training().replace(shape, b"\x0c" * len(shape))})


def with_an_idle_device(folder: Path) -> None:
    """Mutation: `graph_of` does not check that each device has a return."""
    third = [Op("dot.1", 81, 89, 3), Op("dot.1", 0, 0, device=1)]
    write_jax(folder / FIRST, [*MARKS, step(3, 80, 120)], [*OPS, *third])


def with_unequal_steps(folder: Path) -> None:
    write_jax(folder / FIRST, MARKS, OPS)
    write_jax(folder / SECOND, MARKS[:1], OPS[:1])


def with_a_rank_twice(folder: Path) -> None:
    write_jax(folder / FIRST, MARKS, ON_TWO_DEVICES)
    write_jax(folder / SECOND, MARKS, OPS)


def of_two_runs(folder: Path) -> None:
    write_jax(folder / FIRST, MARKS, ON_TWO_DEVICES)
    write_jax(folder / NEXT_EPOCH, MARKS, OPS)


def with_damaged_names(folder: Path) -> None:
    write_jax(folder / FIRST, MARKS, OPS)
    (folder / "names.json").write_text("{")


CASES: dict[str, Callable[[Path], object]] = {
    "a file that breaks off": truncated,
    "a damaged program": with_a_damaged_program,
    "a file of another format": lambda folder: (folder / FIRST).write_text('{"traceEvents": []}'),
    "no step": lambda folder: write_jax(folder / FIRST, [host("main", 0, 50)], OPS),
    "a step without operations": lambda folder: write(folder / FIRST, MARKS, [node("a/MatMul:MatMul", 41, 49)]),
    "operations without durations": lambda folder: write(
        folder / FIRST, MARKS, [node("a/MatMul:MatMul", 1, 9), node("b/MatMul:MatMul", 45, 45)]
    ),
    "steps that run backwards": lambda folder: write_jax(folder / FIRST, [step(1, 40, 80), step(2, 0, 39)], OPS),
    "operations between the steps": lambda folder: write_jax(folder / FIRST, MARKS, [*OPS, Op("dot.1", 52, 59, 3)]),
    "a device without an operation of each step": with_an_idle_device,
    "ranks with other numbers of steps": with_unequal_steps,
    "two files of one rank": with_a_rank_twice,
    "epochs with other numbers of devices": of_two_runs,
    "damaged names of layers": with_damaged_names,
}


def test_every_file_without_a_graph_has_its_message(tmp_path: Path, golden: Golden) -> None:
    messages = {}
    for number, (title, write_files) in enumerate(CASES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_files(folder)
        lines = refusal((GraphError, TraceError), partial(graph, *sorted(folder.glob("*.pb"))))
        messages[title] = [line.replace(f"{folder}/", "") for line in lines]
    check_messages(golden, "files.txt", messages)


def test_operations_outside_of_steps_are_reported(tmp_path: Path) -> None:
    path = tmp_path / FIRST
    events = [event for operation in OPS for event in ran(operation, 1)]
    others = [
        ran(Op("copy.1", begin, begin + 4, number), 1, "jit_other", 10) for number, begin in ((3, 50), (4, 60), (5, 70))
    ]
    write(path, MARKS, [*events, *(event for pair in others for event in pair)])
    made = graph(path)
    assert f"{path}: 1 operations (0.006 ms a step) belong to no step and are left out: 'copy.1'" in made.header.caveats


def test_clocks_of_one_machine_are_aligned_by_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / FIRST, tmp_path / SECOND
    write_jax(first, [clock(0, 1_000_000), *MARKS], OPS)
    later = [operation._replace(begin=operation.begin + 7, end=operation.end + 7) for operation in OPS]
    write_jax(second, [clock(7, 1_000_000), step(1, 7, 47), step(2, 47, 87)], later)
    made = graph(first, second)
    assert made.header.clock_offsets_ns == (0, 0)
    assert made.header.caveats[-1].startswith("operations of a device overlap")
