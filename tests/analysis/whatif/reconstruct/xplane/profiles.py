"""Synthetic files of JAX and TensorFlow for trace graphs: marked steps, operations of devices, and programs.

Times are microseconds from the start of the profiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import Graph, Node
from keras_matrix.analysis.whatif.reconstruct.coverage import HeaderFacts
from keras_matrix.analysis.whatif.reconstruct.xplane.graph import graph_of
from keras_matrix.records.codec import dumps
from keras_matrix.records.traces.request import CLOCK, NAMES_NAME, STEP, Names
from tests.records.traces.synthetic import Made, hlo, hlo_array, hlo_instruction, hlo_plane, message, plane

F32 = 11
US = 1000
PROGRAM = "jit_step(9)"
FORWARD, BACKWARD, UPDATE = "jit(f)/jvp(dense)/dot", "jit(f)/transpose(jvp(dense))/dot", "jit(f)/update/sub"
NAMES = Names(["dense", "head"], phases=True)


class Op(NamedTuple):
    """An operation of XLA: name, begin and end; `run` numbers the runs of the program, `late` is its end event."""

    name: str
    begin: float
    end: float
    run: int = 1
    device: int = 0
    late: float | None = None


def ran(op: Op, number: int, module: str = "jit_step", program: int = 9) -> list[Made]:
    """The events of an operation: its own and, if its end is reported apart, that."""
    stats: dict[str, int | str | bytes] = {
        "hlo_op": op.name, "hlo_module": module, "program_id": program, "run_id": op.run, "device_ordinal": op.device,
    }  # fmt: skip
    if op.late is None:
        return [(op.name, op.begin, op.end - op.begin, stats)]
    own = (op.name, op.begin, op.end - op.begin, {**stats, "_p": number})
    return [own, (f"end: {op.name}", op.late, 0, {"_c": number})]


def step(number: int, begin: float, end: float) -> Made:
    """The mark of a step."""
    return f"{STEP}{number}", begin, end - begin, {}


def clock(begin: float, machine_ns: int) -> Made:
    """A mark with the time of the machine's clock."""
    return f"{CLOCK}{machine_ns}", begin, 0, {}


def host(name: str, begin: float, end: float) -> Made:
    """Another event of the thread with the marks."""
    return name, begin, end - begin, {}


def node(name: str, begin: float, end: float) -> Made:
    """An operation of a TensorFlow graph, named `path:Type`."""
    return name, begin, end - begin, {}


def write(
    path: Path, marks: Sequence[Made], events: Sequence[Made], programs: Mapping[str, bytes] | None = None
) -> Path:
    """Write a file: the program's own thread with the marks, and one of workers."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(message(hlo_plane(programs or {}), plane("/host:CPU", {"python": marks, "pool": events})))
    (path.parent / NAMES_NAME).write_text(dumps(NAMES), encoding="utf-8")
    return path


def write_jax(path: Path, marks: Sequence[Made], ops: Sequence[Op]) -> Path:
    """Write a file of JAX with the program of `training`."""
    events = [event for number, op in enumerate(ops, 1) for event in ran(op, number)]
    return write(path, marks, events, {PROGRAM: training()})


def training() -> bytes:
    """A training step: two products forward and backward, one sum of both gradients over two devices, two updates."""
    size = hlo_array(F32, 4, 4)
    pair = (size, size)
    return hlo(
        "jit_step",
        {
            "main": (
                1,
                [
                    hlo_instruction(1, "x", "parameter", size),
                    hlo_instruction(2, "w", "parameter", size),
                    hlo_instruction(3, "dot.1", "dot", size, operands=(1, 2), origin=FORWARD, dot=(1,)),
                    hlo_instruction(4, "dot.2", "dot", size, operands=(3, 2), origin=BACKWARD, dot=(1,)),
                    hlo_instruction(
                        5, "dot.3", "dot", size, operands=(1, 4), origin=BACKWARD.replace("dense", "head"), dot=(1,)
                    ),
                    hlo_instruction(6, "all-reduce", "all-reduce", pair, operands=(4, 5)),
                    hlo_instruction(7, "gte.1", "get-tuple-element", size, operands=(6,)),
                    hlo_instruction(8, "sub.1", "subtract", size, operands=(2, 7), origin=UPDATE),
                ],
            )
        },
        entry=1,
    )


def graph(*paths: Path, **facts: object) -> Graph:
    """The graph of these files."""
    known: HeaderFacts = facts  # type: ignore[assignment]
    return graph_of(paths, known)


def find(made: Graph, name: str, rank: int = 0) -> Node:
    """The node of a rank with this name."""
    (found,) = (one for one in made.nodes if (one.name, one.rank) == (name, rank))
    return found


def names(made: Graph, lane: str = "compute", rank: int = 0) -> list[str]:
    """The names of a lane's nodes, in order."""
    return [one.name for one in made.nodes if (one.lane, one.rank) == (lane, rank)]


def before(made: Graph, name: str, rank: int = 0) -> set[tuple[int, str]]:
    """Rank and name of what a node depends on."""
    return {(made.nodes[one].rank, made.nodes[one].name) for one in find(made, name, rank).depends}


def us(values: Sequence[int]) -> list[float]:
    """Nanoseconds as microseconds."""
    return [value / US for value in values]
