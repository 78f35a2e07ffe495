"""The operations of an XLA program as a profiler stores it: operands, shapes, bytes, FLOPs and groups of devices.

`reader` reads only what names an operation; this module what a graph of the program needs. Sources for the layout:
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
        own_bytes = math.ceil(math.prod(self.dimensions) * self.bits / 8) if self.bits else 0
        return own_bytes + sum(part.bytes for part in self.parts)

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
        operations_by_computation: dict[str, list[HloOperation]] = {}
        for operation in self.operations.values():
            operations_by_computation.setdefault(operation.computation, []).append(operation)
        return operations_by_computation

    def shapes_of_operands(self, operation: HloOperation) -> list[ArrayShape]:
        """Return the shapes of an operation's operands."""
        operands = (self.operations.get(name) for name in operation.operands)
        return [NO_SHAPE if operand is None else operand.shape for operand in operands]

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
            summed = math.prod(dimensions[axis] for axis in operation.contracted if axis < len(dimensions))
            return 2.0 * operation.shape.elements * summed
        if opcode == "convolution" and len(shapes) > 1:
            kernel, feature_axis = shapes[1], operation.output_feature or 0
            features = kernel.dimensions[feature_axis] if feature_axis < len(kernel.dimensions) else 1
            return 2.0 * operation.shape.elements * kernel.elements / max(1, features)
        return float(shapes[0].elements if opcode in REDUCES and shapes else operation.shape.elements)

    def _flops_of_called(self, operation: HloOperation) -> float | None:
        inner = [
            self.flops(inner_operation)
            for name in operation.called
            for inner_operation in self.computations.get(name, ())
        ]
        return None if None in inner else sum(inner_flops for inner_flops in inner if inner_flops is not None)


def read(data: memoryview) -> HloProgram:
    """Read a program (`HloProto`). Raises `IndexError` or `ValueError` for an invalid one."""
    for key, value in fields(data):
        if key == 1:
            return _module(piece(value))
    return HloProgram("", {}, "")


def _module(data: memoryview) -> HloProgram:
    name, entry_id, computations = "", 0, []
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 6:
            entry_id = number(value)
        elif key == 3:
            computations.append(_computation(piece(value)))
    computation_names = {computation.number: computation.name for computation in computations}
    operations: dict[str, HloOperation] = {}
    for computation in computations:
        instruction_names = {instruction.number: instruction.name for instruction in computation.instructions}
        for instruction in computation.instructions:
            operations[instruction.name] = _operation(
                instruction, computation.name, instruction_names, computation_names
            )
    root_by_computation = {
        computation.name: instruction.name
        for computation in computations
        for instruction in computation.instructions
        if instruction.number == computation.root
    }
    return HloProgram(name, operations, computation_names.get(entry_id, ""), root_by_computation)


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
    name, own_number, root, instructions = "", 0, 0, []
    for key, value in fields(data):
        if key == 1:
            name = text(value)
        elif key == 2:
            instructions.append(_instruction(piece(value)))
        elif key == 5:
            own_number = number(value)
        elif key == 6:
            root = number(value)
    return _Computation(own_number, name, root, instructions)


def _instruction(data: memoryview) -> _Instruction:
    content: dict[int, list[Value]] = {}
    for key, value in fields(data):
        content.setdefault(key, []).append(value)
    name = text(content[1][0]) if 1 in content else ""
    return _Instruction(number(content.get(35, [0])[0]), name, content)


def _operation(
    instruction: _Instruction, computation: str, instruction_names: Mapping[int, str], computations: Mapping[int, str]
) -> HloOperation:
    content = instruction.content
    metadata = dict(fields(piece(content[7][0]))) if 7 in content else {}
    dot = fields(piece(content[30][0])) if 30 in content else ()
    convolution = dict(fields(piece(content[16][0]))) if 16 in content else {}
    return HloOperation(
        name=instruction.name,
        opcode=text(content[2][0]) if 2 in content else "",
        origin=text(metadata[2]) if 2 in metadata else "",
        computation=computation,
        shape=_shape(piece(content[3][0])) if 3 in content else NO_SHAPE,
        operands=tuple(
            instruction_names[operand_id]
            for operand_id in numbers(content.get(36, ()))
            if operand_id in instruction_names
        ),
        called=tuple(
            computations[computation_id]
            for computation_id in numbers(content.get(38, ()))
            if computation_id in computations
        ),
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
        offset = 0
        while offset < len(value):
            item, offset = varint(value, offset)
            yield signed(item)
