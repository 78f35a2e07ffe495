"""What XLA's programs say of the operations of a trace: shape, bytes, FLOPs, collectives, and what each depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.whatif.build.pieces import Call
from keras_matrix.records.traces.xspace.hlo_program import HloOperation, HloProgram

OPERATIONS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "send",
    "collective-broadcast": "broadcast",
}
ALL = "all"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a program says of an operation; None is not known."""

    bytes: int | None = None
    flops: float | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


UNKNOWN = Costs()


class TracedProgram:
    """A program, and the layers of those of its operations that the trace has."""

    def __init__(self, program: HloProgram, layers: Mapping[str, str | None]) -> None:
        self._program, self._layers = program, layers

    def costs(self, name: str) -> Costs:
        """Return what the program says of an operation."""
        operation = self._program.operations.get(name)
        if operation is None:
            return UNKNOWN
        first = operation.shape.arrays[0]
        flops = self._program.flops(operation)
        return Costs(self._program.bytes(operation), flops, first.dtype, first.dimensions if first.dtype else None)

    def before(self, name: str) -> list[str]:
        """Return the traced operations of the outermost computation on which one of them depends directly."""
        operation = self._program.operations.get(name)
        if operation is None or operation.computation != self._program.entry:
            return []
        found: dict[str, None] = {}
        seen = {name}
        waiting = list(operation.operands)
        while waiting:
            if (one := waiting.pop()) in seen:
                continue
            seen.add(one)
            if one in self._layers:
                found[one] = None
            elif operand := self._program.operations.get(one):
                waiting += operand.operands
        return list(found)

    def call(self, name: str, op: str, ranks: Sequence[int]) -> Call:
        """Return a rank's part of the collective with this name; `ranks` are all."""
        operation = self._program.operations.get(name)
        if operation is None:
            return unknown_call(op, ranks)
        kind = operation.opcode.removesuffix("-start").removesuffix("-done")
        parts = [part for operand in operation.operands for part in self._parts(operand)]
        # The complete array: what all ranks have after they gathered, or before they scatter.
        size = operation.shape.bytes if kind == "all-gather" else sum(part for part, _ in parts)
        dtype = operation.shape.arrays[0].dtype
        call = Call(OPERATIONS.get(kind, kind), ALL, tuple(ranks), size, dtype)
        call.tensors = tuple(part for part, _ in parts)
        call.tensor_layers = tuple(layer or "" for _, layer in parts)
        return call

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices of a collective; empty for all."""
        operation = self._program.operations.get(name)
        return operation.groups if operation else ()

    def _parts(self, name: str) -> list[tuple[int, str | None]]:
        """Return size and layer of each array that an operand of a collective consists of."""
        operation = self._program.operations.get(name)
        if operation is None:
            return []
        parts = [self._program.operations[one] for one in operation.operands if one in self._program.operations]
        if (
            len(parts) > 1
            and self._joins(operation)
            and sum(part.shape.bytes for part in parts) == operation.shape.bytes
        ):
            return [(part.shape.bytes, self._layer(part)) for part in parts]
        return [(operation.shape.bytes, self._layer(operation))]

    def _joins(self, operation: HloOperation) -> bool:
        """Return whether an operation concatenates its operands."""
        inner = [one for name in operation.called for one in self._program.computations.get(name, ())]
        return any(one.opcode == "concatenate" for one in (operation, *inner))

    def _layer(self, operation: HloOperation) -> str | None:
        """Return the layer of an operation, or of the traced ones that it takes its value from if they have one."""
        if own := self._layers.get(operation.name):
            return own
        layers = {self._layers[name] for name in self.before(operation.name)}
        return layers.pop() if len(layers) == 1 else None


def unknown_call(op: str, ranks: Sequence[int]) -> Call:
    """Return a rank's part of a collective of which no program is known, such as TensorFlow's."""
    kind = op.removeprefix("Collective").removeprefix("Nccl").lower()
    known = {"reduce": "all_reduce", "allreduce": "all_reduce", "gather": "all_gather", "allgather": "all_gather"}
    known |= {"reducescatter": "reduce_scatter", "bcastsend": "broadcast", "bcastrecv": "broadcast"}
    name = kind.removesuffix("v2").removesuffix("v3")
    return Call(known.get(name, OPERATIONS.get(name, name)), ALL, tuple(ranks), 0)
