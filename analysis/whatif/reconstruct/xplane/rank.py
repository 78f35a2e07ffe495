"""The pieces of one rank: its operations in one order, with the times that belong to them, launches, and collectives.

What a program says of its operations and their dependencies is in them; `chain` gives them their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from keras_matrix.analysis.whatif.graph import NodeKind
from keras_matrix.analysis.whatif.reconstruct.pieces import CollectiveCall, Lane, Piece, RankTrace, Window
from keras_matrix.analysis.whatif.reconstruct.xplane.programs import UNKNOWN, TracedProgram, unknown_call
from keras_matrix.analysis.whatif.reconstruct.xplane.reading import Identity, Profile
from keras_matrix.analysis.whatif.reconstruct.xplane.rows import (
    OperationRow,
    Rows,
    end_before_use,
    end_before_work,
    put_in_order,
    rows_of,
)
from keras_matrix.records.traces.names import TO_DEVICE
from keras_matrix.records.traces.neutral import Phase, TrackKind


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
        found = [lane for lane, rows in self.rows.lanes.items() if not all(row.is_collective for row in rows)]
        return found or list(self.rows.lanes)

    def trace(self, parallel: Mapping[str, int]) -> RankTrace:
        """Return all pieces."""
        caveats = list(dict.fromkeys(text for profile in self.profiles for text in profile.caveats))
        if rare := self.rows.rare_ns:
            names = ", ".join(repr(name) for name, _ in rare.most_common(3))
            total_ms = rare.total() / 1e6 / len(self.windows)
            caveats.append(
                f"rank {self.number}: {len(rare)} operations ({total_ms:.3f} ms a step) are in less than half of the"
                f" steps and are left out: {names}"
            )
        lanes = {lane: steps for lane, steps in self.lanes.items() if any(steps)}
        used = {lane: count for lane, count in parallel.items() if lane in lanes}
        return RankTrace(str(self.profiles[0].path), self.number, self.windows, lanes, self.main, used, caveats)


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
        rank.pieces |= {id(row): own for row, own in zip(rows, pieces, strict=True)}
        rank.lanes[lane] = [[own[step] for own in pieces] for step in range(len(steps))]
    rank.main = max(
        rank.chains, key=lambda lane: sum(piece.duration_ns for own in rank.lanes[lane] for piece in own), default=""
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
    known = {name: one for profile in rank.profiles for name, one in profile.programs.items()}
    return {name: TracedProgram(known[name], own) for name, own in traced.items() if name in known}


def _pieces(rank: Rank, row: OperationRow, program: TracedProgram | None) -> list[Piece]:
    """Return the pieces of a row, one for each step; that of a step without it begins and ends at its usual place."""
    identity = row.identity
    costs = program.costs(identity.name) if program else UNKNOWN
    kind, phase = _kind(row), identity.phase and str(identity.phase)
    cores = 0.0 if row.is_collective or identity.stream is not None else rank.cores
    found = []
    for step, (run, window) in enumerate(zip(row.runs, rank.windows, strict=True)):
        usual_ns = window.begin_ns + round(row.position)
        start_ns, end_ns = (run.start_ns, run.end_ns) if run else (usual_ns, usual_ns)
        piece = Piece(row.lane, row.name, kind, start_ns, end_ns, phase, identity.layer, cores=cores, step=step)
        piece.bytes, piece.flops, piece.dtype, piece.shape = costs.bytes, costs.flops, costs.dtype, costs.shape
        piece.call = _call(rank, row, program) if row.is_collective else None
        found.append(piece)
    return found


def _call(rank: Rank, row: OperationRow, program: TracedProgram | None) -> CollectiveCall:
    """Return the part of this rank in a collective."""
    if program is None:
        return unknown_call(row.identity.op, rank.ranks)
    call = program.call(row.identity.name, row.identity.op, rank.ranks)
    group = next((one for one in program.groups(row.identity.name) if rank.number in one), rank.ranks)
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
    known = _known(rows)
    for (name, _), row in known.items():
        if program := programs.get(name):
            yield from ((row, known[name, before]) for before in program.before(row.identity.name))


def _known(rows: Rows) -> dict[tuple[str, str], OperationRow]:
    """Return the operations by their program and name; of those that run several times in a step the first."""
    return {
        (row.identity.program, row.identity.name): row
        for own in rows.lanes.values()
        for row in own
        if not row.occurrence
    }


def wait(rank: Rank, row: OperationRow, other: OperationRow) -> None:
    """Let an operation wait for another one of its rank in each step."""
    for piece, before in zip(rank.pieces[id(row)], rank.pieces[id(other)], strict=True):
        piece.after.append(before)


def mark_gradients(rank: Rank) -> None:
    """Name the layer whose gradient is complete when an operation ends.

    It is what a collective takes the gradient of that layer from or, where the program does not say that, the layer's
    last operation of the backward pass.
    """
    found: dict[str, OperationRow] = {}
    for rows in rank.rows.lanes.values():
        for row in rows:
            layer = row.identity.layer
            if row.identity.phase is Phase.BACKWARD and layer and not row.is_collective:
                known = found.get(layer)
                if known is None or row.position > known.position:
                    found[layer] = row
    for layer, row in (found | _collected(rank)).items():
        for piece in rank.pieces[id(row)]:
            piece.gradient_of = layer


def _collected(rank: Rank) -> dict[str, OperationRow]:
    """Return by layer the operations from which collectives take the gradient."""
    programs = _programs(rank)
    known = _known(rank.rows)
    found: dict[str, OperationRow] = {}
    for (program, name), row in known.items():
        if row.is_collective and program in programs:
            for part in programs[program].parts(name):
                source = known.get((program, part.source or ""))
                if part.layer and source and source.identity.phase in (Phase.BACKWARD, None):
                    found[part.layer] = source
    return found
