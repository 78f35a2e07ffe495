"""The operations of an XLA program as a profiler stores it: operands, shapes, bytes, FLOPs and groups of devices.

`hlo.py` reads only what names an operation. This reads what a graph of the program needs. Sources for the layout:
`HloProto` in xla/service/hlo.proto, `ShapeProto` in xla/xla_data.proto. FLOPs count products and sums of dot and
convolution exactly, and one for each element of other arithmetic; they are None where they depend on something that
the program does not say, such as the iterations of a loop or the code of a library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from keras_matrix.records.dtypes import BITS
from keras_matrix.records.protobuf import Value, fields, number, piece, signed, text, varint

# Of PrimitiveType in xla_data.proto.
TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64",
    6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 16: "bfloat16",
    15: "complex64", 18: "complex128", 19: "float8_e5m2", 20: "float8_e4m3fn",
    21: "int4", 22: "uint4",
}  # fmt: skip
# Operations without arithmetic: they move, name or rearrange data.
# fmt: off
WITHOUT_FLOPS = frozenset({
    "parameter", "constant", "iota", "partition-id", "replica-id", "bitcast", "bitcast-convert", "tuple",
    "get-tuple-element", "copy", "copy-start", "copy-done", "transpose", "reshape", "broadcast", "slice",
    "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "reverse", "gather", "after-all", "domain",
    "opt-barrier", "all-gather", "all-gather-start", "all-to-all", "collective-permute", "collective-permute-start",
    "collective-broadcast",
})
UNKNOWN_FLOPS = frozenset({
    "while", "conditional", "custom-call", "sort", "fft", "rng", "rng-bit-generator", "infeed", "outfeed",
})
# fmt: on
CALLS = frozenset({"fusion", "call", "async-start"})
# Operations that sum, over their first operand.
REDUCES = frozenset({"reduce", "reduce-window", "select-and-scatter", "all-reduce", "reduce-scatter"})


class ArrayShape(NamedTuple):
    """An array's type and dimensions; a tuple has `parts` instead."""

    dtype: str | None = None
    dimensions: tuple[int, ...] = ()
    bits: int = 0
    parts: tuple[ArrayShape, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements of an array; of a tuple, those of all its arrays."""
        return sum(part.elements for part in self.parts) if self.parts else math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """The size of the array, or of all arrays of a tuple."""
        own = math.ceil(math.prod(self.dimensions) * self.bits / 8) if self.bits else 0
        return own + sum(part.bytes for part in self.parts)

    @property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """The arrays of a tuple, or the array itself."""
        return tuple(array for part in self.parts for array in part.arrays) if self.parts else (self,)


NO_SHAPE = ArrayShape()


@dataclass(frozen=True, slots=True)
class HloOperation:
    """An operation of a program. `operands` and `called` are names; `groups` are devices that communicate."""

    name: str
    opcode: str
    origin: str
    computation: str
    shape: ArrayShape = NO_SHAPE
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    contracted: tuple[int, ...] = ()  # dimensions of the first operand of a dot
    output_feature: int | None = None  # of a convolution: the dimension of its kernel
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class HloProgram:
    """A program: its operations by name, whose names are unique, and the names of the outermost computation."""

    name: str
    operations: Mapping[str, HloOperation]
    entry: str
    roots: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def computations(self) -> dict[str, list[HloOperation]]:
        """The operations of each computation."""
        found: dict[str, list[HloOperation]] = {}
        for operation in self.operations.values():
            found.setdefault(operation.computation, []).append(operation)
        return found

    def shapes_of_operands(self, operation: HloOperation) -> list[ArrayShape]:
        """Return the shapes of an operation's operands."""
        found = (self.operations.get(name) for name in operation.operands)
        return [NO_SHAPE if one is None else one.shape for one in found]

    def bytes(self, operation: HloOperation) -> int:
        """Return the bytes that an operation reads and writes, if it reads each operand once."""
        return operation.shape.bytes + sum(shape.bytes for shape in self.shapes_of_operands(operation))

    def flops(self, operation: HloOperation) -> float | None:
        """Return an operation's FLOPs, None if the program does not say how many."""
        opcode = operation.opcode
        if opcode in UNKNOWN_FLOPS:
            return None
        if opcode in WITHOUT_FLOPS or opcode.endswith("-done"):
            return 0.0
        if opcode in CALLS:
            return self._flops_of_called(operation)
        shapes = self.shapes_of_operands(operation)
        if opcode == "dot" and shapes:
            dimensions = shapes[0].dimensions
            summed = math.prod(dimensions[at] for at in operation.contracted if at < len(dimensions))
            return 2.0 * operation.shape.elements * summed
        if opcode == "convolution" and len(shapes) > 1:
            kernel, at = shapes[1], operation.output_feature or 0
            features = kernel.dimensions[at] if at < len(kernel.dimensions) else 1
            return 2.0 * operation.shape.elements * kernel.elements / max(1, features)
        return float(shapes[0].elements if opcode in REDUCES and shapes else operation.shape.elements)

    def _flops_of_called(self, operation: HloOperation) -> float | None:
        inner = [self.flops(one) for name in operation.called for one in self.computations.get(name, ())]
        return None if None in inner else sum(one for one in inner if one is not None)


def read(data: memoryview) -> HloProgram:
    """Read a program (`HloProto`). Raises `IndexError` or `ValueError` for an invalid one."""
    for key, value in fields(data):
        if key == 1:
            return _module(piece(value))
    return HloProgram("", {}, "")


def _module(data: memoryview) -> HloProgram:
    name, entry_id, parts = "", 0, []
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 6:
            entry_id = number(value)
        elif key == 3:
            parts.append(_computation(piece(value)))
    names = {part.number: part.name for part in parts}
    operations: dict[str, HloOperation] = {}
    for part in parts:
        operands = {one.number: one.name for one in part.instructions}
        for one in part.instructions:
            operations[one.name] = _operation(one, part.name, operands, names)
    roots = {part.name: one.name for part in parts for one in part.instructions if one.number == part.root}
    return HloProgram(name, operations, names.get(entry_id, ""), roots)


class _Instruction(NamedTuple):
    number: int
    name: str
    content: dict[int, list[Value]]


class _Computation(NamedTuple):
    number: int
    name: str
    root: int
    instructions: list[_Instruction]


def _computation(data: memoryview) -> _Computation:
    name, own, root, instructions = "", 0, 0, []
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 2:
            instructions.append(_instruction(piece(value)))
        elif key == 5:
            own = number(value)
        elif key == 6:
            root = number(value)
    return _Computation(own, name, root, instructions)


def _instruction(data: memoryview) -> _Instruction:
    content: dict[int, list[Value]] = {}
    for key, value in fields(data):
        content.setdefault(key, []).append(value)
    name = text(content[1][0]) if 1 in content else ""
    return _Instruction(number(content.get(35, [0])[0]), name, content)


def _operation(
    one: _Instruction, computation: str, operands: Mapping[int, str], computations: Mapping[int, str]
) -> HloOperation:
    content = one.content
    metadata = dict(fields(piece(content[7][0]))) if 7 in content else {}
    dot = fields(piece(content[30][0])) if 30 in content else ()
    convolution = dict(fields(piece(content[16][0]))) if 16 in content else {}
    return HloOperation(
        name=one.name,
        opcode=text(content[2][0]) if 2 in content else "",
        origin=text(metadata[2]) if 2 in metadata else "",
        computation=computation,
        shape=_shape(piece(content[3][0])) if 3 in content else NO_SHAPE,
        operands=tuple(operands[at] for at in numbers(content.get(36, ())) if at in operands),
        called=tuple(computations[at] for at in numbers(content.get(38, ())) if at in computations),
        contracted=tuple(numbers([value for key, value in dot if key == 1])),
        output_feature=number(convolution.get(4, 0)) if convolution else None,
        groups=_groups(content),
    )


def _groups(content: Mapping[int, list[Value]]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices that communicate, where the program lists them."""
    return tuple(
        tuple(numbers([value for key, value in fields(piece(group)) if key == 1])) for group in content.get(49, ())
    )


def _shape(data: memoryview) -> ArrayShape:
    kind = 0
    dimensions: list[int] = []
    parts: list[ArrayShape] = []
    for key, value in fields(data):
        if key == 2:
            kind = number(value)
        elif key == 3:
            dimensions += numbers([value])
        elif key == 4:
            parts.append(_shape(piece(value)))
    dtype = TYPES.get(kind)
    return ArrayShape(dtype, tuple(dimensions), BITS[dtype] if dtype else 0, tuple(parts))


def numbers(values: Iterator[Value] | list[Value] | tuple[Value, ...]) -> Iterator[int]:
    """Yield the integers of a repeated field, which are single or packed into one piece."""
    for value in values:
        if isinstance(value, int):
            yield signed(value)
            continue
        at = 0
        while at < len(value):
            item, at = varint(value, at)
            yield signed(item)
