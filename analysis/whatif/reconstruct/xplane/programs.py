"""What XLA's programs say of the operations of a trace: shape, bytes, FLOPs, collectives, and what each depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Identity
from keras_matrix.records.traces.neutral import Phase
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


class CollectiveInput(NamedTuple):
    """An array that a collective takes, its layer, and the traced operation that makes it; None is not known."""

    bytes: int
    layer: str | None
    source: str | None


class TracedProgram:
    """A program, and those of its operations that the trace has."""

    def __init__(self, program: HloProgram, traced: Mapping[str, Identity]) -> None:
        self._program, self._traced = program, traced

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
            if one in self._traced:
                found[one] = None
            elif operand := self._program.operations.get(one):
                waiting += operand.operands
        return list(found)

    def call(self, name: str, op: str, ranks: Sequence[int]) -> CollectiveCall:
        """Return a rank's part of the collective with this name; `ranks` are all."""
        operation = self._program.operations.get(name)
        if operation is None:
            return unknown_call(op, ranks)
        kind = operation.opcode.removesuffix("-start").removesuffix("-done")
        parts = self.parts(name)
        # The complete array: what all ranks have after they gathered, or before they scatter.
        size = operation.shape.bytes if kind == "all-gather" else sum(part.bytes for part in parts)
        dtype = operation.shape.arrays[0].dtype
        call = CollectiveCall(OPERATIONS.get(kind, kind), ALL, tuple(ranks), size, dtype)
        call.tensors = tuple(part.bytes for part in parts)
        call.tensor_layers = tuple(part.layer or "" for part in parts)
        return call

    def parts(self, name: str) -> list[CollectiveInput]:
        """Return the arrays that a collective takes: its operands, or what an operand joins."""
        operation = self._program.operations.get(name)
        return [part for operand in operation.operands for part in self._parts(operand)] if operation else []

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of devices of a collective; empty for all."""
        operation = self._program.operations.get(name)
        return operation.groups if operation else ()

    def _parts(self, name: str) -> list[CollectiveInput]:
        operation = self._program.operations.get(name)
        if operation is None:
            return []
        joined = [self._program.operations[one] for one in operation.operands if one in self._program.operations]
        size = sum(one.shape.bytes for one in joined)
        if len(joined) > 1 and self._joins(operation) and size == operation.shape.bytes:
            return [self._part(one) for one in joined]
        return [self._part(operation)]

    def _joins(self, operation: HloOperation) -> bool:
        """Return whether an operation concatenates its operands."""
        inner = [one for name in operation.called for one in self._program.computations.get(name, ())]
        return any(one.opcode == "concatenate" for one in (operation, *inner))

    def _part(self, operation: HloOperation) -> CollectiveInput:
        """Return an array with its layer, or that of the backward pass from which it takes its value."""
        size, own = operation.shape.bytes, self._traced.get(operation.name)
        if own and own.layer:
            return CollectiveInput(size, own.layer, own.name)
        before = [self._traced[name] for name in self.before(operation.name)]
        sources = [one for one in before if one.phase is Phase.BACKWARD and one.layer]
        layers = {one.layer for one in sources}
        source = own or (sources[0] if len(sources) == 1 else None)
        return CollectiveInput(size, layers.pop() if len(layers) == 1 else None, source.name if source else None)


def unknown_call(op: str, ranks: Sequence[int]) -> CollectiveCall:
    """Return a rank's part of a collective of which no program is known, such as TensorFlow's."""
    kind = op.removeprefix("Collective").removeprefix("Nccl").lower()
    known = {"reduce": "all_reduce", "allreduce": "all_reduce", "gather": "all_gather", "allgather": "all_gather"}
    known |= {"reducescatter": "reduce_scatter", "bcastsend": "broadcast", "bcastrecv": "broadcast"}
    name = kind.removesuffix("v2").removesuffix("v3")
    return CollectiveCall(known.get(name, OPERATIONS.get(name, name)), ALL, tuple(ranks), 0)
