"""XLA's programs, as a profiler stores them with its events: the operation and the origin of each instruction.

The layout is that of `HloProto` in xla/service/hlo.proto. An instruction's origin is a path of name scopes, such as
`jit(train_step)/transpose(jvp(dense_1))/dot_general`; that of a fusion is the origin of its last instruction.
"""

from __future__ import annotations

from typing import NamedTuple

from keras_matrix.records.protobuf import fields, piece, text

STAT = "Hlo Proto"


class Instruction(NamedTuple):
    """The operation of an instruction, such as dot or fusion, and its path of scopes, empty if unknown."""

    opcode: str
    origin: str


def instructions(data: memoryview) -> dict[str, Instruction]:
    """Return the instructions of all computations of a program by name. Raises `IndexError` or `ValueError`."""
    found: dict[str, Instruction] = {}
    for key, module in fields(data):
        if key != 1:
            continue
        for inner, computation in fields(piece(module)):
            if inner == 3:
                found |= dict(_instruction(piece(one)) for name, one in fields(piece(computation)) if name == 2)
    return found


def _instruction(data: memoryview) -> tuple[str, Instruction]:
    name = opcode = origin = ""
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 2:
            opcode = text(value)
        elif key == 7:
            origin = next((text(item) for inner, item in fields(piece(value)) if inner == 2), "")
    return name, Instruction(opcode, origin)
