"""Makes the pieces of one rank: its operations in one order, with the times of their events, launches, and collectives.

What XLA's programs say of the operations of a trace is in them, where a program is known: shape, bytes, FLOPs,
collectives, and what each depends on. `chain` then gives them the times that belong to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall, Lane, Piece, RankTrace, Window
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import (
    Identity,
    OperationRow,
    Profile,
    Rows,
    end_before_use,
    end_before_work,
    put_in_order,
    rows_of,
)
from keras_matrix.records.traces.neutral import TO_DEVICE, Phase, TrackKind
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


@dataclass(slots=True)
class Rank:
    """A rank while its graph is built: its files, one for each traced epoch, and the number of its device in them.

    `pieces` are those of each row, by the row's identity, one for each step. `returns` end the steps.
    """

    number: int
    profiles: list[Profile]
    device: int
    ranks: tuple[int, ...]
    cores: float
    windows: list[Window] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    lanes: dict[str, list[Lane]] = field(default_factory=dict)
    returns: Lane = field(default_factory=list)
    main: str = ""

    @property
    def chains(self) -> list[str]:
        """The lanes that are not made of collectives alone; all if there is no other."""
        lanes = [lane for lane, rows in self.rows.lanes.items() if not all(row.is_collective for row in rows)]
        return lanes or list(self.rows.lanes)

    def trace(self, parallel: Mapping[str, int]) -> RankTrace:
        """Return all pieces."""
        caveats = list(dict.fromkeys(text for profile in self.profiles for text in profile.caveats))
        if rare_ns := self.rows.rare_ns:
            names_text = ", ".join(repr(name) for name, _ in rare_ns.most_common(3))
            total_ms = rare_ns.total() / 1e6 / len(self.windows)
            caveats.append(
                f"rank {self.number}: {len(rare_ns)} operations ({total_ms:.3f} ms a step) are in less than half of the"
                f" steps and are left out: {names_text}"
            )
        lanes = {lane: steps for lane, steps in self.lanes.items() if any(steps)}
        used_lanes = {lane: count for lane, count in parallel.items() if lane in lanes}
        return RankTrace(str(self.profiles[0].path), self.number, self.windows, lanes, self.main, used_lanes, caveats)


def fill(rank: Rank) -> None:
    """Make the pieces of a rank from its files, with the times of their events."""
    steps = [runs for profile in rank.profiles for runs in profile.runs.get(rank.device, [])]
    rank.windows = [window for profile in rank.profiles for window in profile.windows]
    rank.rows = rows_of(steps)
    programs = _programs(rank)
    befores = list(_befores(rank.rows, programs))
    end_before_use(befores)
    end_before_work(rank.rows, rank.profiles, rank.chains)
    put_in_order(rank.rows, rank.windows)
    for lane, rows in rank.rows.lanes.items():
        pieces = [_pieces(rank, row, programs.get(row.identity.program)) for row in rows]
        rank.pieces |= {id(row): row_pieces for row, row_pieces in zip(rows, pieces, strict=True)}
        rank.lanes[lane] = [[row_pieces[step] for row_pieces in pieces] for step in range(len(steps))]
    rank.main = max(
        rank.chains,
        key=lambda lane: sum(piece.duration_ns for step_pieces in rank.lanes[lane] for piece in step_pieces),
        default="",
    )
    for row, other in befores:
        # The order within a lane is a dependency anyway. One against the order of the ends would be a circle.
        if other.lane != row.lane and other.position <= row.position:
            wait(rank, row, other)


def _programs(rank: Rank) -> dict[str, TracedProgram]:
    """Return XLA's programs that ran, by their names."""
    traced: dict[str, dict[str, Identity]] = {}
    for rows in rank.rows.lanes.values():
        for row in rows:
            traced.setdefault(row.identity.program, {})[row.identity.name] = row.identity
    program_by_name = {name: program for profile in rank.profiles for name, program in profile.programs.items()}
    return {
        name: TracedProgram(program_by_name[name], traced_rows)
        for name, traced_rows in traced.items()
        if name in program_by_name
    }


def _pieces(rank: Rank, row: OperationRow, program: TracedProgram | None) -> list[Piece]:
    """Return the pieces of a row, one for each step; that of a step without it begins and ends at its usual place."""
    identity = row.identity
    costs = program.costs(identity.name) if program else UNKNOWN
    kind, phase = _kind(row), identity.phase and str(identity.phase)
    cores = 0.0 if row.is_collective or identity.stream is not None else rank.cores
    pieces = []
    for step, (run, window) in enumerate(zip(row.runs, rank.windows, strict=True)):
        usual_ns = window.begin_ns + round(row.position)
        start_ns, end_ns = (run.start_ns, run.end_ns) if run else (usual_ns, usual_ns)
        piece = Piece(row.lane, row.name, kind, start_ns, end_ns, phase, identity.layer, cores=cores, step=step)
        piece.bytes, piece.flops, piece.dtype, piece.shape = costs.bytes, costs.flops, costs.dtype, costs.shape
        piece.call = _call(rank, row, program) if row.is_collective else None
        pieces.append(piece)
    return pieces


def _call(rank: Rank, row: OperationRow, program: TracedProgram | None) -> CollectiveCall:
    """Return the part of this rank in a collective."""
    if program is None:
        return unknown_call(row.identity.op, rank.ranks)
    call = program.call(row.identity.name, row.identity.op, rank.ranks)
    group = next((group for group in program.groups(row.identity.name) if rank.number in group), rank.ranks)
    if set(group) != set(rank.ranks):
        call.group, call.ranks = ",".join(map(str, group)), group
    return call


def _kind(row: OperationRow) -> NodeKind:
    if row.identity.kind is TrackKind.COMMUNICATION:
        return NodeKind.COMMUNICATION
    if row.identity.phase is Phase.INPUT or row.identity.op == TO_DEVICE:
        return NodeKind.INPUT
    return NodeKind.COMPUTE


def _befores(rows: Rows, programs: Mapping[str, TracedProgram]) -> Iterator[tuple[OperationRow, OperationRow]]:
    """Yield each operation of a program with one that it depends on directly."""
    row_by_name = _known(rows)
    for (name, _), row in row_by_name.items():
        if program := programs.get(name):
            yield from ((row, row_by_name[name, name_before]) for name_before in program.before(row.identity.name))


def _known(rows: Rows) -> dict[tuple[str, str], OperationRow]:
    """Return the operations by their program and name; of those that run several times in a step the first."""
    return {
        (row.identity.program, row.identity.name): row
        for lane_rows in rows.lanes.values()
        for row in lane_rows
        if not row.occurrence
    }


def wait(rank: Rank, row: OperationRow, other: OperationRow) -> None:
    """Let an operation wait for another one of its rank in each step."""
    for piece, piece_before in zip(rank.pieces[id(row)], rank.pieces[id(other)], strict=True):
        piece.after.append(piece_before)


def mark_gradients(rank: Rank) -> None:
    """Name the layer whose gradient is complete when an operation ends.

    It is what a collective takes the gradient of that layer from or, where the program does not say that, the layer's
    last operation of the backward pass.
    """
    last_rows: dict[str, OperationRow] = {}
    for rows in rank.rows.lanes.values():
        for row in rows:
            layer = row.identity.layer
            if row.identity.phase is Phase.BACKWARD and layer and not row.is_collective:
                last_row = last_rows.get(layer)
                if last_row is None or row.position > last_row.position:
                    last_rows[layer] = row
    for layer, row in (last_rows | _collected(rank)).items():
        for piece in rank.pieces[id(row)]:
            piece.gradient_of = layer


def _collected(rank: Rank) -> dict[str, OperationRow]:
    """Return by layer the operations from which collectives take the gradient."""
    programs = _programs(rank)
    row_by_name = _known(rank.rows)
    source_by_layer: dict[str, OperationRow] = {}
    for (program, name), row in row_by_name.items():
        if row.is_collective and program in programs:
            for operation in programs[program].parts(name):
                source = row_by_name.get((program, operation.source or ""))
                if operation.layer and source and source.identity.phase in (Phase.BACKWARD, None):
                    source_by_layer[operation.layer] = source
    return source_by_layer


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
        first_array = operation.shape.arrays[0]
        flops = self._program.flops(operation)
        return Costs(
            self._program.bytes(operation),
            flops,
            first_array.dtype,
            first_array.dimensions if first_array.dtype else None,
        )

    def before(self, name: str) -> list[str]:
        """Return the traced operations of the outermost computation on which one of them depends directly."""
        operation = self._program.operations.get(name)
        if operation is None or operation.computation != self._program.entry:
            return []
        names_before: dict[str, None] = {}
        visited = {name}
        waiting_names = list(operation.operands)
        while waiting_names:
            if (operand_name := waiting_names.pop()) in visited:
                continue
            visited.add(operand_name)
            if operand_name in self._traced:
                names_before[operand_name] = None
            elif operand := self._program.operations.get(operand_name):
                waiting_names += operand.operands
        return list(names_before)

    def call(self, name: str, op_name: str, ranks: Sequence[int]) -> CollectiveCall:
        """Return a rank's part of the collective with this name; `ranks` are all."""
        operation = self._program.operations.get(name)
        if operation is None:
            return unknown_call(op_name, ranks)
        kind = operation.opcode.removesuffix("-start").removesuffix("-done")
        inputs = self.parts(name)
        # The complete array: what all ranks have after they gathered, or before they scatter.
        size = (
            operation.shape.bytes
            if kind == "all-gather"
            else sum(collective_input.bytes for collective_input in inputs)
        )
        dtype = operation.shape.arrays[0].dtype
        call = CollectiveCall(OPERATIONS.get(kind, kind), ALL, tuple(ranks), size, dtype)
        call.tensors = tuple(collective_input.bytes for collective_input in inputs)
        call.tensor_layers = tuple(collective_input.layer or "" for collective_input in inputs)
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
        joined = [
            self._program.operations[operand] for operand in operation.operands if operand in self._program.operations
        ]
        size = sum(joined_operation.shape.bytes for joined_operation in joined)
        if len(joined) > 1 and self._joins(operation) and size == operation.shape.bytes:
            return [self._part(joined_operation) for joined_operation in joined]
        return [self._part(operation)]

    def _joins(self, operation: HloOperation) -> bool:
        """Return whether an operation concatenates its operands."""
        inner = [
            inner_operation for name in operation.called for inner_operation in self._program.computations.get(name, ())
        ]
        return any(candidate.opcode == "concatenate" for candidate in (operation, *inner))

    def _part(self, operation: HloOperation) -> CollectiveInput:
        """Return an array with its layer, or that of the backward pass from which it takes its value."""
        size, row = operation.shape.bytes, self._traced.get(operation.name)
        if row and row.layer:
            return CollectiveInput(size, row.layer, row.name)
        rows_before = [self._traced[name] for name in self.before(operation.name)]
        sources = [row_before for row_before in rows_before if row_before.phase is Phase.BACKWARD and row_before.layer]
        layers = {source.layer for source in sources}
        source = row or (sources[0] if len(sources) == 1 else None)
        return CollectiveInput(size, layers.pop() if len(layers) == 1 else None, source.name if source else None)


def unknown_call(op: str, ranks: Sequence[int]) -> CollectiveCall:
    """Return a rank's part of a collective of which no program is known, such as TensorFlow's."""
    kind = op.removeprefix("Collective").removeprefix("Nccl").lower()
    operation_names = {
        "reduce": "all_reduce",
        "allreduce": "all_reduce",
        "gather": "all_gather",
        "allgather": "all_gather",
    }
    operation_names |= {"reducescatter": "reduce_scatter", "bcastsend": "broadcast", "bcastrecv": "broadcast"}
    name = kind.removesuffix("v2").removesuffix("v3")
    return CollectiveCall(operation_names.get(name, OPERATIONS.get(name, name)), ALL, tuple(ranks), 0)
